"""Who gets a place: the earliest step first, evaluation within its share."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

from vf.trainer.collecting.rollout_slots import AT_ONCE, RolloutSlots


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Holder:
    """Takes a place and keeps it until told."""

    def __init__(self, name: str, place: AbstractAsyncContextManager[Any], log: list[str]) -> None:
        self._name, self._log = name, log
        self._done = asyncio.Event()
        self.task = asyncio.create_task(self._hold(place))

    async def _hold(self, place: AbstractAsyncContextManager[Any]) -> None:
        async with place:
            self._log.append(self._name)
            await self._done.wait()

    async def leave(self) -> None:
        self._done.set()
        await self.task


async def test_the_earliest_step_comes_first_whoever_asked_first() -> None:
    slots, log = RolloutSlots(1, 0.5), list[str]()
    holder = Holder("first", slots.hold((1, 0)), log)
    await settle()
    others = {
        name: Holder(name, slots.hold(rank), log)
        for name, rank in (("late", (3, 0)), ("early", (1, 7)), ("middle", (2, 1)))
    }
    await settle()
    await holder.leave()
    for name in ("early", "middle", "late"):
        await settle()
        await others[name].leave()
    assert log == ["first", "early", "middle", "late"]


async def test_evaluation_takes_its_share_and_what_is_free() -> None:
    slots, log = RolloutSlots(4, 0.25), list[str]()
    evaluating = [Holder(f"e{n}", slots.hold(None), log) for n in range(6)]
    await settle()
    alone = list(log)  # nobody else wants a place
    training = [Holder(f"t{n}", slots.hold((1, n)), log) for n in range(6)]
    await settle()
    for holder in evaluating[:4]:
        await holder.leave()
        await settle()
    for holder in [*evaluating[4:], *training]:
        holder.task.cancel()
    after = log[4:]
    assert alone == ["e0", "e1", "e2", "e3"]
    # Evaluation still holds more than its one place while the first three of its own leave.
    assert after == ["t0", "t1", "t2", "e4"]


async def test_training_never_starves_evaluation() -> None:
    slots, log = RolloutSlots(2, 0.5), list[str]()
    training = [Holder(f"t{n}", slots.hold((1, n)), log) for n in range(5)]
    await settle()
    Holder("e", slots.hold(None), log)
    await settle()
    await training[0].leave()
    await settle()
    assert log == ["t0", "t1", "e"]


async def test_a_cancelled_wait_costs_no_place() -> None:
    slots, log = RolloutSlots(1, 1.0), list[str]()
    holder = Holder("held", slots.hold((1, 0)), log)
    await settle()
    waiting = Holder("cancelled", slots.hold((1, 1)), log)
    also = Holder("cancelled too", slots.hold(None), log)
    at_once = Holder("cancelled when it got it", slots.hold((0, 0)), log)
    await settle()
    waiting.task.cancel()
    also.task.cancel()
    await settle()
    holder._done.set()
    for _ in range(3):  # until the place is granted, before the waiter wakes up
        await asyncio.sleep(0)
        if holder.task.done():
            break
    at_once.task.cancel()
    await settle()
    last = Holder("last", slots.hold((9, 9)), log)
    await settle()
    await last.leave()
    assert log == ["held", "last"]


async def test_places_that_come_free_at_once_leave_others_their_turn() -> None:
    slots, log = RolloutSlots(1000, 0.5), list[str]()
    holders = [Holder(f"{n}", slots.hold((1, n)), log) for n in range(1000)]
    begun = [0]
    while begun[-1] < len(holders):
        await asyncio.sleep(0)
        begun.append(len(log))
    assert max([after - before for before, after in pairwise(begun)]) == AT_ONCE
