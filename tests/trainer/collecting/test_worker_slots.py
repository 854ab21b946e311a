"""Which worker a rollout goes to, also while workers are missing."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import vf
from vf.environments.episode import Activity
from vf.runtime.errors import TrainingError
from vf.trainer.collecting.worker_slots import HOMES, NEAR, Worker, WorkerSlots

SECONDS = 30.0


class Scene:
    """Rollouts that run until they are cancelled.

    Args:
        count: Workers.
        rollouts: At once, in all of them.
    """

    def __init__(self, count: int, rollouts: int) -> None:
        self.slots = WorkerSlots(count, rollouts)
        self.works: list[asyncio.Task[None]] = []
        self.at: dict[int, Worker] = {}  # by rollout

    async def begin(self, count: int, task: str = "") -> None:
        for _ in range(count):
            number = len(self.works)
            self.works.append(asyncio.create_task(self._run(number, task or str(number))))
        await self.settle()

    async def end(self, *numbers: int) -> None:
        for number in numbers:
            self.works[number].cancel()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _run(self, number: int, name: str) -> None:
        task = vf.Task(name, "?")
        async with self.slots.hold(task, Activity(task)) as (_, worker):
            self.at[number] = worker
            await asyncio.Event().wait()


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), SECONDS))


def test_the_first_worker_that_is_ready_leaves_the_others_their_parts() -> None:
    async def main() -> None:
        scene, first, second = Scene(2, 64), Worker(), Worker()
        await scene.begin(64)
        assert not scene.at
        scene.slots.enter(first)
        await scene.settle()
        assert len(first.live) == 32 + NEAR
        scene.slots.enter(second)
        await scene.settle()
        assert (len(first.live), len(second.live)) == (32 + NEAR, 32 - NEAR)
        scene.slots.leave(second)  # what it had does not pile onto the other
        await scene.end(*(number for number, worker in scene.at.items() if worker is second))
        await scene.begin(24)
        assert len(first.live) == 32 + NEAR
        await scene.end(0, 1, 2)
        assert len(first.live) == 32 + NEAR, "those that wait take the slots that are free again"
        await scene.end(*range(len(scene.works)))
        assert not first.live

    play(main)


def test_other_work_does_not_wait_for_the_place_of_a_rollout() -> None:
    async def main() -> None:
        scene, worker = Scene(2, 2), Worker()
        scene.slots.enter(worker)
        await scene.begin(20)
        async with scene.slots.hold(vf.Task("group", "?")) as (_, found):
            assert found is worker
        assert len(worker.live) == 1 + NEAR

    play(main)


def test_rollouts_of_a_task_stay_together_until_their_worker_has_many_more() -> None:
    async def main() -> None:
        scene, workers = Scene(2, 64), [Worker(), Worker()]
        for worker in workers:
            scene.slots.enter(worker)
        await scene.begin(NEAR, "one")
        assert {id(worker) for worker in scene.at.values()} == {id(workers[0])}
        await scene.begin(1, "one")
        assert scene.at[NEAR] is workers[1]

    play(main)


def test_the_workers_of_only_so_many_tasks_are_remembered_and_none_that_has_ended() -> None:
    async def main() -> None:
        slots, worker = WorkerSlots(1, 1), Worker()
        slots.enter(worker)
        for number in range(HOMES + 5):
            async with slots.hold(vf.Task(str(number), "?")):
                pass
        assert len(slots._homes) == HOMES
        slots.leave(worker)
        assert not slots._homes

    play(main)


def test_all_that_waits_ends_with_the_failure_and_its_traceback_does_not_grow() -> None:
    async def main() -> None:
        slots = WorkerSlots(1, 1)

        async def wait() -> None:
            async with slots.hold(vf.Task("1", "?")):
                pass

        early = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        slots.fail(TrainingError("no worker can run"))
        found = await asyncio.gather(*early, wait(), wait(), return_exceptions=True)
        assert [str(error) for error in found] == ["no worker can run"] * 5
        sizes = {len(traceback.extract_tb(error.__traceback__)) for error in found if error}
        assert sizes == {3}

    play(main)
