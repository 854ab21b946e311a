"""The pool hands out each sandbox once, keeps its promises of number, and leaves nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sandbox.counted import Counted, Factory
from tests.waiting import until
from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.pool import PATIENCE, SandboxPool


def test_each_is_handed_out_once_and_destroyed_afterwards() -> None:
    async def run() -> None:
        factory = Factory()
        async with SandboxPool(factory, 3) as pool:
            got: list[Counted] = []
            for _ in range(10):
                async with pool.acquire() as sandbox:
                    assert sandbox.closings == 0
                    got.append(sandbox)
        assert len({sandbox.number for sandbox in got}) == 10
        assert all(sandbox.closings == 1 for sandbox in got)
        assert factory.there == 0

    asyncio.run(run())


def test_it_fills_ahead_and_a_ready_one_costs_no_wait() -> None:
    async def run() -> None:
        factory = Factory()
        async with SandboxPool(factory, 4, concurrency=2) as pool:
            await pool.filled()
            assert pool.stats().ready == 4
            factory.seconds = 60
            async with pool.acquire(timeout=60):
                stats = pool.stats()
                assert (stats.in_use, stats.ready, stats.starting) == (1, 3, 1)

    asyncio.run(run())


def test_no_more_are_made_at_once_than_allowed_however_many_wait() -> None:
    async def episode(pool: SandboxPool[Counted]) -> None:
        async with pool.acquire():
            await asyncio.sleep(0)

    async def run() -> None:
        factory = Factory(0.02)
        async with SandboxPool(factory, 2, concurrency=3) as pool:
            episodes = [asyncio.create_task(episode(pool)) for _ in range(20)]
            await asyncio.sleep(0)
            assert pool.stats().waiting == 20
            await asyncio.gather(*episodes)
            stats = pool.stats()
        assert factory.most_at_once == 3
        assert stats.acquired == 20
        assert stats.waiting == 0
        assert 0.1 < stats.longest_wait < stats.waited
        assert factory.there == 0

    asyncio.run(run())


def test_who_comes_first_is_served_first() -> None:
    async def run() -> list[int]:
        order: list[int] = []

        async def episode(number: int) -> None:
            async with pool.acquire():
                order.append(number)

        async with SandboxPool(Factory(0.01), 1, concurrency=1) as pool:
            await asyncio.gather(*(episode(number) for number in range(6)))
        return order

    assert asyncio.run(run()) == list(range(6))


def test_making_waits_for_a_destruction_that_falls_behind() -> None:
    async def run() -> None:
        factory = Factory()
        factory.close_seconds = 0.2
        async with SandboxPool(factory, 2, concurrency=1) as pool:
            for _ in range(12):
                async with pool.acquire():
                    pass
                assert factory.there <= 2 + 2 + 1 + 1
        assert factory.there == 0

    asyncio.run(run())


def test_one_that_died_while_it_waited_is_replaced() -> None:
    async def run() -> None:
        factory = Factory()
        async with SandboxPool(factory, 1) as pool:
            await pool.filled()
            pool._ready[0][1].lose()
            async with pool.acquire() as sandbox:
                assert sandbox.number == 2
            assert pool.stats().failed == 1
        assert factory.there == 0

    asyncio.run(run())


def test_one_that_grew_old_while_it_waited_is_replaced() -> None:
    async def run() -> None:
        factory = Factory()
        async with SandboxPool(factory, 1, max_age=0.1) as pool:
            await pool.filled()
            await until(lambda: factory.made > 1)
            async with pool.acquire() as sandbox:
                assert sandbox.number > 1
            assert pool.stats().failed == 0
        assert factory.there == 0

    asyncio.run(run())


def test_a_passing_failure_is_tried_again() -> None:
    async def run() -> None:
        factory = Factory(errors=[SandboxError("engine away")])
        async with SandboxPool(factory, 1) as pool:
            async with pool.acquire(timeout=60):
                pass
            assert pool.stats().failed == 1

    asyncio.run(run())


def test_lasting_failure_is_reported_to_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vf.sandbox.pool.BACKOFF", 0.001)

    async def run() -> None:
        factory = Factory(errors=[SandboxError("engine away") for _ in range(PATIENCE + 4)])
        async with SandboxPool(factory, 2, concurrency=2) as pool:

            async def episode() -> None:
                async with pool.acquire(timeout=60):
                    pass

            ends = await asyncio.gather(*(episode() for _ in range(3)), return_exceptions=True)
            assert all("times in a row: engine away" in str(end) for end in ends)
            assert all(isinstance(end, SandboxError) for end in ends)
            # It keeps trying: when the engine is back, so is the pool.
            await until(lambda: not factory.errors)
            async with pool.acquire(timeout=60):
                pass
            assert pool.stats().failed == PATIENCE + 4

    asyncio.run(run())


def test_what_can_never_work_is_reported_at_once_and_not_tried_again() -> None:
    async def run() -> None:
        factory = Factory(errors=[ConfigError("no such image")])
        async with SandboxPool(factory, 2, concurrency=1) as pool:
            with pytest.raises(ConfigError, match="no such image"):
                await pool.filled(timeout=60)
            with pytest.raises(ConfigError, match="no such image"):
                async with pool.acquire(timeout=60):
                    pass
        assert factory.tried == 1

    asyncio.run(run())


def test_a_wait_has_an_end_and_says_what_it_waited_for() -> None:
    async def run() -> None:
        async with SandboxPool(Factory(30), 1) as pool:
            said = r"no sandbox was handed out for 0.05 s: 2 being made, 1 episodes waiting"
            with pytest.raises(SandboxError, match=said):
                async with pool.acquire(timeout=0.05):
                    pass
            assert pool.stats().waiting == 0
            with pytest.raises(SandboxError, match=r"1 sandboxes were not ready after 0.05 s"):
                await pool.filled(timeout=0.05)

    asyncio.run(run())


def test_cancelled_episodes_lose_no_sandbox() -> None:
    async def run() -> None:
        factory = Factory(0.003)

        async def episode() -> None:
            async with pool.acquire():
                await asyncio.sleep(0)

        async with SandboxPool(factory, 2) as pool:
            episodes = [asyncio.create_task(episode()) for _ in range(60)]
            for number, task in enumerate(episodes):
                await asyncio.sleep(0)
                if number % 2:
                    task.cancel()
            await asyncio.gather(*episodes, return_exceptions=True)
            await pool.filled()
            stats = pool.stats()
            assert (stats.waiting, stats.in_use) == (0, 0)
            # One that has just closed is closing to the pool until its task runs again.
            kept = stats.ready + stats.starting
            assert kept <= factory.there <= kept + stats.closing
        assert factory.there == 0

    asyncio.run(run())


def test_closing_destroys_those_in_use_and_ends_the_wait_of_others() -> None:
    async def run() -> None:
        factory = Factory(0.01)
        pool = SandboxPool(factory, 1)

        async def hold() -> None:
            async with pool.acquire():
                await asyncio.Event().wait()

        async def wait() -> None:
            async with pool.acquire():
                pass

        async with pool:
            holder = asyncio.create_task(hold())
            await until(lambda: pool.stats().in_use == 1)
            await pool.filled()
            factory.seconds = 60
            second = asyncio.create_task(hold())
            await until(lambda: pool.stats().in_use == 2)
            waiter = asyncio.create_task(wait())
            await until(lambda: pool.stats().waiting == 1)
            await pool.close()
            assert factory.there == 0
            with pytest.raises(SandboxError, match="not open"):
                await waiter
            holder.cancel()
            second.cancel()
        assert factory.there == 0

    asyncio.run(run())


def test_one_that_cannot_be_destroyed_stops_nobody() -> None:
    async def run() -> None:
        factory = Factory()
        factory.close_error = SandboxError("engine away")
        async with SandboxPool(factory, 1) as pool:
            for _ in range(3):
                async with pool.acquire(timeout=60):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize("bad", [{"size": -1}, {"size": 1, "concurrency": 0}])
def test_numbers_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        SandboxPool(Factory(), **bad)


@pytest.mark.parametrize("steps", range(4))
def test_a_loop_that_ends_leaves_none_though_it_cancels_their_destruction(steps: int) -> None:
    factory = Factory()

    async def keep(pool: SandboxPool[Counted]) -> None:
        async with pool:
            await asyncio.Event().wait()

    async def run() -> None:
        pool = SandboxPool(factory, 2)
        keeping = asyncio.create_task(keep(pool))
        await asyncio.sleep(0)
        await pool.filled()
        async with pool.acquire():
            pass
        for _ in range(steps):
            await asyncio.sleep(0)
        assert not keeping.done()  # the loop's end is what cancels it

    asyncio.run(run())
    assert factory.there == 0


def test_one_whose_destruction_was_cancelled_is_still_the_pool_s() -> None:
    """A host forgets a pool that is idle: nobody else would try again."""

    async def run() -> None:
        factory = Factory()
        factory.close_seconds = 30.0
        pool = SandboxPool(factory, 1, changed=lambda: pool.fill(spare=False))
        pool.open()
        pool.resize(0)
        async with pool.acquire():
            pass
        before = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.sleep(0)
        for task in before:  # as a loop that ends does
            task.cancel()
        await asyncio.gather(*before, return_exceptions=True)
        assert not pool.idle
        factory.close_seconds = 0.0
        await pool.close()
        assert pool.idle
        assert factory.there == 0

    asyncio.run(run())
