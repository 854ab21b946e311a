"""Evaluating with group rewards, and with outcomes that cannot be told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import vf
from vf.environments.environment import Split
from vf.rubrics.group import AnyRubric


def first_wins(traces: Sequence[vf.Trace]) -> list[float]:
    return [float(index == 0) for index in range(len(traces))]


class Choice(vf.Environment):
    """Two tasks; the reply is ignored."""

    id = "choice"
    max_turns = 1
    rubric: AnyRubric = vf.Rubric(
        lambda trace: 1.0, group_rewards=[vf.GroupReward(first_wins, 0.5)]
    )

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for name in "ab":
            yield vf.Task(name, name)


SAY = vf.ScriptedModel(lambda messages: "x")


def test_the_rollouts_of_a_task_are_a_group_and_reported_once_they_are_scored() -> None:
    told: list[float | None] = []
    result = asyncio.run(
        vf.evaluate(
            Choice(), SAY, rollouts_per_example=3, on_trace=lambda trace: told.append(trace.reward)
        )
    )
    assert result.rewards == [1.0, 0.5, 0.5] * 2
    assert told == result.rewards


def test_a_group_stage_that_fails_leaves_no_rewards() -> None:
    def broken(traces: Sequence[vf.Trace]) -> list[float]:
        raise KeyError("gold")

    environment = Choice()
    environment.rubric = vf.Rubric(lambda trace: 1.0, group_rewards=[broken])
    result = asyncio.run(vf.evaluate(environment, SAY, rollouts_per_example=2))
    assert result.rewards == []
    assert result.errors == 4
    assert result.unscored == 0


def test_an_outcome_that_cannot_be_told_counts_apart() -> None:
    environment = Choice()
    environment.rubric = vf.Rubric(lambda trace: None if trace.task.id == "a" else 0.5)
    result = asyncio.run(vf.evaluate(environment, SAY))
    assert result.mean_reward == 0.5
    assert (result.unscored, result.errors) == (1, 0)


def test_a_weighted_sum_serves_as_an_environments_rubric() -> None:
    environment = Choice()
    environment.rubric = vf.WeightedSum({"a": lambda trace: 1.0, "b": lambda trace: 0.0})
    assert asyncio.run(vf.evaluate(environment, SAY)).mean_reward == 0.5
