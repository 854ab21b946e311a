"""Group rewards: functions that see all the rollouts of one task together.

They run after the group's rollouts have been scored one by one, and see only the traces: the
environments are closed by then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vf.rubrics.scorers import Part, blaming, check_scorer, checked, name_of
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, InfrastructureError, RubricError
from vf.traces.trace import Failure, Score, Trace

Values = Sequence[float | int | None]
GroupScorer = Callable[[Sequence[Trace]], Values | Awaitable[Values]]


class AnyRubric(Protocol):
    """What the rollout loop and the trainer need of a rubric."""

    @property
    def group_rewards(self) -> Mapping[str, GroupReward]:
        """The group rewards by name; where there are none, no trace waits for its group."""

    async def score(self, trace: Trace) -> Score:
        """Score one trace; raise RubricError where that fails."""

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Add the group rewards to the scores of one task's traces."""


@dataclass(frozen=True, slots=True)
class GroupReward:
    """A function of a whole group, and its weight.

    Attributes:
        fn: Takes the group's scored traces (at least two; their ``score`` is set) and returns a
            number in [0, 1] for each, in order: 1 is the best. None for one of them: not
            applicable. Sync or async.
        weight: Its share, above 0 and at most 1: see the rubric that it is part of.
        name: How it appears in scores; the function's name by default.
    """

    fn: GroupScorer
    weight: float = 0.1
    name: str = ""

    def __post_init__(self) -> None:
        check_scorer(self.fn, "the list of the group's traces")
        if not 0.0 < self.weight <= 1.0:
            raise ConfigError(
                f"group reward {name_of(self.fn)!r}: weight must be above 0 and at most 1, "
                f"got {self.weight}"
            )


def check_rubric(rubric: object) -> None:
    """Check that something is a rubric.

    Raises:
        ConfigError: If it is not; the message says what to write.
    """
    if isinstance(rubric, list | tuple):
        names = ", ".join(map(name_of, rubric))
        description, write = "a list of functions", f"vf.WeightedSum([{names}])"
    elif inspect.isclass(rubric):
        description, write = f"the class {rubric.__name__}", f"{rubric.__name__}(...)"
    elif not hasattr(rubric, "score") and callable(rubric):
        name = name_of(rubric)
        description, write = f"the function {name}", f"vf.Rubric(outcome={name})"
    elif not hasattr(rubric, "score"):
        description, write = repr(rubric), "vf.Rubric(outcome=...)"
    else:
        return
    raise ConfigError(f"rubric is {description}, not a rubric; write rubric = {write}")


async def score_group(rubric: AnyRubric, traces: Sequence[Trace], timeout: float) -> None:
    """Let the group rewards of a rubric score the rollouts of one task, in place.

    Without group rewards this does nothing. If they fail, or take too long, every rollout that
    had not failed before gets ``Trace.error`` and loses its score: a reward that could not be
    computed is not a reward.

    Args:
        rubric: The rubric.
        traces: The group, scored one by one before.
        timeout: Seconds for the whole group.
    """
    members = [trace for trace in traces if trace.error is None]
    if not rubric.group_rewards or not members:
        return
    try:
        try:
            async with asyncio.timeout(timeout) as deadline:
                await rubric.score_group(members)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            names = ", ".join(map(repr, rubric.group_rewards))
            raise RubricError(f"the group rewards {names} took over {timeout:g} s") from error
    except InfrastructureError as error:
        for trace in members:
            trace.error = Failure.of(error)
            trace.score = None


async def apply_group_rewards(
    rewards: Mapping[str, GroupReward],
    traces: Sequence[Trace],
    combine: Callable[[Score], float | None],
) -> None:
    """Record the group rewards in each trace's ``score.parts``, and combine again.

    In a group of fewer than two there is nothing to compare, so every value is None.

    Args:
        rewards: The group rewards by name.
        traces: The traces of the group that have a score.
        combine: Computes the reward from a score's raw components.

    Raises:
        RubricError: If a function raises, or does not return a number in [0, 1] per
            trace. The message names it, and no score has changed.
    """
    values_by_name = {
        name: await _values(name, reward.fn, traces) for name, reward in rewards.items()
    }
    for index, trace in enumerate(traces):
        score = trace.score
        if score is not None:
            score.parts |= {name: values[index] for name, values in values_by_name.items()}
            score.reward = combine(score)


async def _values(name: str, fn: GroupScorer, traces: Sequence[Trace]) -> list[float | None]:
    if len(traces) < 2:
        return [None] * len(traces)
    with blaming(repr(name)):
        values = list(await call(fn, list(traces)))
    if len(values) != len(traces):
        raise RubricError(f"{name!r} returned {len(values)} numbers for {len(traces)} traces")
    part = Part(name, lambda trace: None)
    return [checked(value, part) for value in values]
