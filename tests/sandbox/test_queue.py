"""Waiting for a sandbox: a queue that moves is waited for, and one that pauses is not."""

from __future__ import annotations

import asyncio
import time

from tests.sandbox.counted import Counted, Factory
from tests.waiting import until
from vf.runtime.errors import SandboxError
from vf.sandbox.pool import Progress, SandboxPool


async def use(pool: SandboxPool[Counted], timeout: float) -> float:
    """Take a sandbox; return how long it was waited for."""
    began = time.monotonic()
    async with pool.acquire(timeout=timeout):
        return time.monotonic() - began


def test_a_queue_that_moves_is_waited_for_beyond_the_timeout() -> None:
    async def run() -> None:
        async with SandboxPool(Factory(0.02), 0, concurrency=1) as pool:
            waits = await asyncio.gather(*(use(pool, timeout=0.6) for _ in range(40)))
            assert waits[-1] > 0.7
            assert pool.stats().longest_wait > 0.7

    asyncio.run(run())


def test_a_queue_that_makes_no_progress_ends_for_all_at_once() -> None:
    async def run() -> None:
        factory = Factory(0.02)
        async with SandboxPool(factory, 0, concurrency=1) as pool:
            waiting = [asyncio.create_task(use(pool, timeout=0.3)) for _ in range(50)]
            await until(lambda: pool.stats().acquired >= 3)
            factory.seconds = 60
            began = time.monotonic()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert time.monotonic() - began < 5  # and not 0.3 s for each
            assert sum(isinstance(end, SandboxError) for end in ends) > 40

    asyncio.run(run())


def test_who_waits_for_a_place_waits_as_long_as_pools_that_share_it_serve_others() -> None:
    async def run() -> None:
        progress, room = Progress(), asyncio.Semaphore(0)
        busy = SandboxPool(Factory(0.02), 0, concurrency=1, progress=progress)
        other = SandboxPool(Factory(), 0, progress=progress, room=lambda: 0 if room.locked() else 1)
        async with busy, other:
            waiting = asyncio.create_task(use(other, timeout=0.5))
            for _ in range(30):
                await use(busy, timeout=0.5)
            room.release()
            other.fill()
            assert await waiting > 0.55

    asyncio.run(run())
