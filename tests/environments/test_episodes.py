"""Episodes: their own state, their own random numbers, and closed however they end."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

import vf

TASK = vf.Task("t", "Go.")


class Dice(vf.Environment):
    """Rolls a die per reply into a list that ``reset`` made."""

    max_turns = 4

    def reset(self, task: vf.Task) -> str:
        self.rolls: list[int] = []
        return "Roll."

    async def step(self, reply: vf.Message) -> vf.Step:
        await asyncio.sleep(0)
        self.rolls.append(self.rng.randint(1, 10**9))
        return vf.Step("Again.", info={"rolls": list(self.rolls)})


def rolls(seed: int, environment: vf.Environment | None = None) -> list[int]:
    model = vf.ScriptedModel(lambda messages: "roll")
    trace = asyncio.run(vf.rollout(environment or Dice(), TASK, model, seed=seed))
    found = trace.info["rolls"]
    assert len(found) == 4
    assert isinstance(found, list)
    return found


def test_the_same_seed_draws_the_same_and_another_seed_draws_others() -> None:
    environment = Dice()
    assert rolls(1, environment) == rolls(1, environment) == rolls(1)
    assert rolls(1) != rolls(2)


def test_global_random_numbers_are_neither_used_nor_touched() -> None:
    random.seed(7)
    state = random.getstate()
    first = rolls(1)
    assert random.getstate() == state
    random.seed(8)
    assert rolls(1) == first


def test_concurrent_episodes_do_not_share_what_reset_made() -> None:
    environment = Dice()
    evaluation = asyncio.run(
        vf.evaluate(
            environment,
            vf.ScriptedModel(lambda messages: "roll"),
            tasks=[TASK],
            rollouts_per_example=8,
        )
    )
    found = [trace.info["rolls"] for trace in evaluation.traces]
    assert [len(entry) for entry in found] == [4] * 8
    assert len({tuple(entry) for entry in found}) == 8
    assert not hasattr(environment, "rolls")


def test_tool_events_and_turns_stay_with_their_episode() -> None:
    class Shop(vf.Environment):
        @vf.tool
        def buy(self, item: str) -> str:
            return item

    environment = Shop()
    environment.toolbox.schemas()  # built for the definition, and not shared with its episodes
    model = vf.ScriptedModel([{"buy": {"item": "tea"}}, "Done."])
    traces = [asyncio.run(vf.rollout(environment, TASK, model)) for _ in range(2)]
    assert [len(trace.tool_events) for trace in traces] == [1, 1]
    assert environment.tool_events == []
    assert environment.turn == 0


def test_a_tool_method_sees_its_own_episode() -> None:
    class Counter(vf.Environment):
        def reset(self, task: vf.Task) -> str:
            self.count = 0
            return "Count."

        @vf.tool
        def up(self) -> int:
            self.count += 1
            return self.count

    environment = Counter()
    environment.toolbox.schemas()  # bound to the definition, and not shared with its episodes
    model = vf.ScriptedModel([{"up": {}}, {"up": {}}, "Done."])
    for _ in range(2):
        trace = asyncio.run(vf.rollout(environment, TASK, model))
        assert [m.content for m in trace.messages if m.role == "tool"] == ["1", "2"]


class Open(vf.Environment):
    def __init__(self, awaited: bool) -> None:
        self.awaited = awaited
        self.entered = asyncio.Event()
        self.closed = threading.Event()

    async def step(self, reply: vf.Message) -> vf.Step:
        self.entered.set()
        await asyncio.Event().wait()
        return vf.Step(terminated=True)

    def close(self) -> Any:
        async def later() -> None:
            await asyncio.sleep(0)
            self.closed.set()

        return later() if self.awaited else self.closed.set()


@pytest.mark.parametrize("awaited", [False, True], ids=["plain", "coroutine"])
async def test_cancelling_a_rollout_closes_its_environment(awaited: bool) -> None:
    environment = Open(awaited)

    run = asyncio.create_task(vf.rollout(environment, TASK, vf.ScriptedModel(["a"])))
    await environment.entered.wait()
    assert not environment.closed.is_set()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert environment.closed.is_set()


def test_an_environment_without_tasks_says_what_to_define() -> None:
    with pytest.raises(vf.ConfigError, match=r"Dice does not define tasks\(self, split\)"):
        Dice().tasks("train")
