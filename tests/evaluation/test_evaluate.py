"""Evaluating a model: order, seeds, concurrency, and failures kept apart."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest

import vf
from tests.waiting import until
from vf.environments.environment import Split
from vf.evaluation.evaluate import Evaluation, take_tasks
from vf.runtime.seeding import derive_seed


class Echo(vf.Environment):
    """Rewards a reply equal to the task's answer; counts how many episodes are open."""

    id = "echo"
    rubric = vf.Rubric(lambda trace: float(trace.reply == trace.task.answer))
    open = 0
    most = 0

    def __init__(self, ids: str = "abc") -> None:
        self.ids = ids

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for name in self.ids if split == "eval" else "":
            yield vf.Task(name, name, answer="a")

    async def step(self, reply: vf.Message) -> vf.Step:
        Echo.open += 1
        Echo.most = max(Echo.most, Echo.open)
        await asyncio.sleep(0.02)
        Echo.open -= 1
        if reply.content == "b":
            raise KeyError("b is broken")
        return vf.Step(terminated=True)


ECHO = vf.ScriptedModel(lambda messages: messages[-1].content)


def evaluate(environment: vf.Environment | None = None, **kwargs: Any) -> Evaluation:
    return asyncio.run(vf.evaluate(environment or Echo(), ECHO, **kwargs))


def test_traces_come_in_the_order_of_the_tasks_and_on_trace_as_they_finish() -> None:
    finished: list[str] = []

    class Backwards(Echo):
        async def step(self, reply: vf.Message) -> vf.Step:
            await until(lambda: len(finished) >= 2 * (ord("c") - ord(reply.content)))
            return await super().step(reply)

    evaluation = evaluate(
        Backwards(), rollouts_per_example=2, on_trace=lambda trace: finished.append(trace.task.id)
    )
    assert [trace.task.id for trace in evaluation.traces] == list("aabbcc")
    assert finished == list("ccbbaa")


def test_a_failed_rollout_touches_no_other_and_counts_nowhere() -> None:
    evaluation = evaluate()
    assert [trace.reward for trace in evaluation.traces] == [1.0, None, 0.0]
    assert evaluation.rewards == [1.0, 0.0]
    assert evaluation.mean_reward == 0.5
    assert evaluation.errors == 1
    assert repr(evaluation) == "<Evaluation of 3 rollouts: 0.500, 1 failed>"
    assert math.isnan(evaluate(Echo("b")).mean_reward)


def test_every_rollout_has_a_seed_of_its_task_and_index() -> None:
    evaluation = evaluate(rollouts_per_example=2, seed=5)
    assert [trace.seed for trace in evaluation.traces] == [
        derive_seed(5, "eval", name, index) for name in "abc" for index in range(2)
    ]


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_rollouts_than_allowed_are_in_flight(limit: int) -> None:
    Echo.open = Echo.most = 0
    evaluate(Echo("efgh"), max_concurrent=limit, rollouts_per_example=2)
    assert Echo.most == limit


def test_rollouts_that_begin_at_once_leave_others_their_turn() -> None:
    class Counted(Echo):
        begun = 0

        async def reset(self, task: vf.Task) -> list[vf.Message]:
            Counted.begun += 1
            return self.first_messages(task)

    async def scene() -> int:
        environment = Counted("".join(map(chr, range(1000, 1500))))
        evaluation = asyncio.create_task(vf.evaluate(environment, ECHO, max_concurrent=500))
        most = 0
        while Counted.begun < 500:
            before = Counted.begun
            await asyncio.sleep(0)
            most = max(most, Counted.begun - before)
        await evaluation
        return most

    assert asyncio.run(scene()) <= 4  # in one pass of the event loop


def test_tasks_are_taken_from_the_front_of_the_eval_split() -> None:
    assert [trace.task.id for trace in evaluate(tasks=2).traces] == ["a", "b"]
    own = [vf.Task("z", "c", answer="c")]
    assert evaluate(tasks=own).rewards == [1.0]


def test_endless_splits_can_be_taken_from() -> None:
    class Endless(Echo):
        def tasks(self, split: Split) -> Iterator[vf.Task]:
            index = 0
            while True:
                yield vf.Task(f"{split}-{index}", "p")
                index += 1

    assert [task.id for task in take_tasks(Endless(), "train", 2)] == ["train-0", "train-1"]


def test_two_tasks_of_one_id_are_a_config_error() -> None:
    with pytest.raises(vf.ConfigError, match="echo: two eval tasks have the id 'a'"):
        evaluate(Echo("aba"))


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (vf.Task("a", "p", answer=object()), "its answer cannot be written as JSON"),
        (vf.Task("a", "p", answer="\ud83d"), "its answer cannot be written as JSON"),
        (vf.Task("a", "p", info={"x": {object()}}), "its info cannot be written as JSON"),
        (vf.Task("a", "p\ud83d"), "its prompt cannot be written as JSON"),
        (vf.Task("a\ud83d", "p"), "its id cannot be written as JSON"),
        (vf.Task("a", "p", info="x"), "its info must be a dict, got str"),  # type: ignore[arg-type]
    ],
)
def test_a_task_that_no_trace_could_hold_is_a_config_error(task: vf.Task, said: str) -> None:
    class Wrong(Echo):
        def tasks(self, split: Split) -> Iterator[vf.Task]:
            yield task

    with pytest.raises(vf.ConfigError, match=f"echo: eval task number 1, 'a.*': {said}"):
        take_tasks(Wrong(), "eval")


def test_no_tasks_are_a_config_error() -> None:
    with pytest.raises(vf.ConfigError, match="echo: the eval split has no tasks"):
        evaluate(Echo(""))
    with pytest.raises(vf.ConfigError, match="no tasks"):
        evaluate(tasks=[])


@pytest.mark.parametrize("settings", [{"rollouts_per_example": 0}, {"max_concurrent": 0}])
def test_counts_below_one_are_config_errors(settings: Any) -> None:
    with pytest.raises(vf.ConfigError, match="at least 1"):
        evaluate(**settings)


def test_a_config_error_inside_a_rollout_is_raised_as_itself() -> None:
    def untyped(x) -> None: ...  # type: ignore[no-untyped-def]

    environment = Echo()
    environment.tools = [untyped]
    with pytest.raises(vf.ConfigError, match="untyped"):
        evaluate(environment)


def test_an_error_in_on_trace_is_raised_as_itself() -> None:
    def full(trace: vf.Trace) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        evaluate(on_trace=full)
