"""The loop of the rollouts, as its owner waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator

import pytest

from vf.trainer.collecting.background_loop import BackgroundLoop


class JustInTime(concurrent.futures.Future[int]):
    """Work that ends right after a wait for it has timed out."""

    def result(self, timeout: float | None = None) -> int:
        if not self.done():
            self.set_result(7)
            raise concurrent.futures.TimeoutError
        return super().result(timeout)


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    made = BackgroundLoop()
    yield made
    made.stop()


def test_work_that_ends_as_a_wait_times_out_has_its_result(loop: BackgroundLoop) -> None:
    assert loop.wait(JustInTime(), lambda: None) == 7


def test_a_timeout_of_the_work_itself_is_raised(loop: BackgroundLoop) -> None:
    async def late() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60.0)

    with pytest.raises(TimeoutError):
        loop.call(late(), lambda: None)


def test_what_the_watch_raises_ends_the_wait_and_the_work(loop: BackgroundLoop) -> None:
    ended = concurrent.futures.Future[str]()

    async def long() -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            ended.set_result("cancelled")
            raise

    def dead() -> None:
        raise RuntimeError("the engine is dead")

    with pytest.raises(RuntimeError, match="the engine is dead"):
        loop.call(long(), dead)
    assert ended.result(10.0) == "cancelled"
