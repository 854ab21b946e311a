"""Rollouts and samples for a loop of one's own."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch

import vf
from tests.trainer.conftest import Digits
from vf.inference.model import Conversation, Reply, Sampling
from vf.runtime.errors import ConfigError, ModelError, TrainingError
from vf.traces.messages import Message
from vf.traces.trace import Branch, Failure, Score, Turn

TASKS = list(Digits().tasks("train"))


def trace(task: str, reward: float | None, turns: int = 1, branches: int = 1) -> vf.Trace:
    """Return a trace with a token for each turn in each of its branches."""
    made = vf.Trace("own", vf.Task(task, f"Do {task}."), seed=0)
    made.score = None if reward is None else Score(reward, reward)
    made.turns = [Turn(2, 1, "stop", 0.0)] * turns
    for _ in range(branches):
        branch = Branch()
        branch.add_context([1, 2], 0)
        for turn in range(turns):
            branch.add_sampled([3], [-1.0], [0], turn)
        made.branches.append(branch)
    return made


def failed(message: str) -> vf.Trace:
    made = trace("a", None)
    made.error = Failure.of(ModelError(message))
    return made


def test_rollouts_are_compared_with_those_of_their_task_in_any_order() -> None:
    traces = [trace("a", 1.0), trace("b", 0.5), trace("a", 0.0, branches=2), trace("b", 0.0)]
    traces += [trace("c", 1.0), trace("c", 1.0), failed("gone")]
    found = [(each.rollout, each.advantage) for each in vf.samples(traces)]
    ids = [each.id for each in traces]
    expected = [(ids[0], 0.5), (ids[2], -0.5), (ids[2], -0.5), (ids[1], 0.25), (ids[3], -0.25)]
    assert found == expected, "a group of equal rewards is left out, and what failed"
    assert vf.samples(traces[4:]) == []
    assert vf.samples([]) == []


def test_advantages_may_be_a_function_of_an_array() -> None:
    seen = []

    def above_half(rewards: torch.Tensor) -> torch.Tensor:
        seen.append(rewards)
        return rewards - 0.5

    traces = [trace("a", 1.0), trace("a", 1.0), trace("b", 0.5), trace("c", 0.0)]
    found = vf.samples(traces, advantages=above_half)
    assert [each.advantage for each in found] == [0.5, 0.5, -0.5], "without a group of zeros"
    assert [(each.dtype, each.shape) for each in seen] == [
        (torch.float64, (count,)) for count in (2, 1, 1)
    ]
    assert [each.advantage for each in vf.samples([*traces[:2], trace("a", 0.0)], "rloo")] == (
        pytest.approx([0.5, 0.5, -1.0])
    )


@pytest.mark.parametrize("wrong", [lambda r: r[:-1], lambda r: r / 0.0, lambda r: r.sum()])
def test_advantages_are_a_finite_number_for_each_rollout(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"the advantages '.*lambda>' returned"):
        vf.samples([trace("a", 1.0), trace("a", 0.5)], advantages=wrong)


def test_credit_and_truncation_are_those_of_a_run() -> None:
    traces = [trace("a", 1.0, turns=2), trace("a", 0.0, turns=2)]
    traces[0].step_rewards = [0.75, 0.25]
    traces[1].step_rewards = [0.0, 0.0]
    found = vf.samples(traces, credit="turn")
    assert [each.turn_advantages for each in found] == [(0.5, 0.125), (-0.5, -0.125)]
    traces[1].stop_reason = vf.StopReason.TRUNCATED
    assert len(vf.samples(traces, mask_truncated=True)) == 1
    with pytest.raises(ConfigError, match="credit = 'turns'"):
        vf.samples(traces, credit="turns")


def test_what_can_never_teach_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"not one trace .* \(2×\), in the model: gone"):
        vf.samples([failed("gone"), failed("gone"), failed("late")])
    with pytest.raises(TrainingError, match="the rubric scored none"):
        vf.samples([trace("a", None)])
    with pytest.raises(ConfigError, match=r"set rollouts_per_example in vf\.rollouts"):
        vf.samples([trace("a", 1.0), trace("b", 0.0)])
    with pytest.raises(ConfigError, match=r"hold no tokens .*Learner\.sampler"):
        vf.samples([trace("a", 1.0, branches=0), trace("a", 0.0, branches=0)])
    other = trace("a", 0.0)
    other.task = vf.Task("a", "Do something else.")
    with pytest.raises(ConfigError, match="two tasks have the id 'a'"):
        vf.samples([trace("a", 1.0), other])


class Seeds:
    """A model that answers with its seed, and fails now and then."""

    sampling = Sampling(max_tokens=7)

    def __init__(self, failing: int = 0) -> None:
        self.failing = failing

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        assert sampling.max_tokens == 7, "its own"
        self.failing -= 1
        if self.failing >= 0:
            raise ModelError("out of order")
        return Reply(Message(role="assistant", content=str(sampling.seed)))


def test_rollouts_of_a_task_stand_together_and_each_call_has_its_own_seeds() -> None:
    def answers(**settings: Any) -> list[tuple[str, str]]:
        work = vf.rollouts(Digits(), Seeds(), TASKS[:3], rollouts_per_example=2, **settings)
        return [(each.task.id, each.reply) for each in asyncio.run(work)]

    first, second = answers(), answers()
    assert [task for task, _ in first] == [task.id for task in TASKS[:3] for _ in range(2)]
    assert len({answer for _, answer in [*first, *second]}) == 12
    assert answers(seed=5) == answers(seed=5)


def test_too_many_failures_end_the_loop_and_fewer_are_left_to_it() -> None:
    def run(failing: int) -> list[vf.Trace]:
        return asyncio.run(vf.rollouts(Digits(), Seeds(failing), TASKS[:2], max_error_rate=0.25))

    assert sum(each.error is not None for each in run(4)) == 4
    with pytest.raises(TrainingError, match=r"5 of 16 .*Most often \(5×\).* out of order"):
        run(5)
    for rate in (-0.1, math.nan):
        with pytest.raises(ConfigError, match="it is a share"):
            asyncio.run(vf.rollouts(Digits(), Seeds(), TASKS, max_error_rate=rate))
