"""Waiting for a sandbox: a queue that moves is waited for, and one that pauses is not."""

from __future__ import annotations

import asyncio
import time

from tests.sandbox.counted import Counted, Factory
from tests.waiting import Clock, until
from vf.runtime.errors import SandboxError
from vf.sandbox.pool import Progress, SandboxPool

TIMEOUT = 10.0


class Slow(Factory):
    """Needs three seconds for each."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    async def __call__(self) -> Counted:
        await self.clock.skip(3.0)
        return await super().__call__()


async def use(pool: SandboxPool[Counted]) -> float:
    """Take a sandbox; return how long it was waited for."""
    began = time.monotonic()
    async with pool.acquire(timeout=TIMEOUT):
        return time.monotonic() - began


def test_a_queue_that_moves_is_waited_for_beyond_the_timeout(clock: Clock) -> None:
    async def run() -> None:
        async with SandboxPool(Slow(clock), 0, concurrency=1) as pool:
            waits = await asyncio.gather(*(use(pool) for _ in range(10)))
            assert waits[-1] >= 30.0
            assert pool.stats().longest_wait >= 30.0

    asyncio.run(run())


def test_a_queue_that_makes_no_progress_ends_for_all_at_once(clock: Clock) -> None:
    factory = Factory()

    async def make() -> Counted:
        if factory.made == 3:
            await asyncio.Event().wait()
        return await factory()

    async def run() -> None:
        async with SandboxPool(make, 0, concurrency=1) as pool:
            waiting = [asyncio.create_task(use(pool)) for _ in range(50)]
            await until(lambda: pool.stats().acquired == 3 and pool.stats().starting)
            await clock.skip(TIMEOUT)
            await until(lambda: all(task.done() for task in waiting))  # not TIMEOUT for each
            ends = [task.exception() for task in waiting]
            assert sum(isinstance(end, SandboxError) for end in ends) == 47

    asyncio.run(run())


def test_who_waits_for_a_place_waits_as_long_as_pools_that_share_it_serve_others(
    clock: Clock,
) -> None:
    async def run() -> None:
        progress, room = Progress(), asyncio.Semaphore(0)
        busy = SandboxPool(Slow(clock), 0, concurrency=1, progress=progress)
        other = SandboxPool(Factory(), 0, progress=progress, room=lambda: 0 if room.locked() else 1)
        async with busy, other:
            waiting = asyncio.create_task(use(other))
            for _ in range(10):
                await use(busy)
            room.release()
            other.fill()
            assert await waiting >= 30.0

    asyncio.run(run())
