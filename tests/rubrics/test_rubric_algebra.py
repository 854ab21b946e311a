"""The reward's algebra: what no choice of weights, penalties, cap and floor can break."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

import vf

# Not within rounding of an end, which is taken for the end.
UNIT = st.floats(1e-6, 1.0 - 1e-6) | st.sampled_from([0.0, 1.0])
SETTINGS = settings(deadline=None, max_examples=40)
Weighted = tuple[tuple[float, float | None], ...]  # weight, value


@dataclass(frozen=True)
class Case:
    """A rubric with fixed answers."""

    outcome: float
    penalties: Weighted
    group: Weighted
    cap: float
    floor: float

    @property
    def total(self) -> float:
        """The weighted faults, written out naively."""
        found = [weight * (value or 0.0) for weight, value in self.penalties]
        found += [weight * (1 - value) for weight, value in self.group if value is not None]
        return sum(found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    cap = draw(st.floats(0.01, 0.5))
    weighted = st.tuples(st.floats(0.0, cap, exclude_min=True), UNIT | st.none())
    penalties = tuple(draw(st.lists(weighted, max_size=4)))
    group = tuple(draw(st.lists(weighted, max_size=2)))
    floor = draw(st.just(0.0) | st.floats(0.0, 0.1)) if penalties or group else 0.0
    return Case(draw(UNIT | st.just(0.0)), penalties, group, cap, floor)


def constant(value: float | None) -> Callable[[vf.Trace], float | None]:
    return lambda trace: value


def for_all(value: float | None) -> Callable[[object], list[float | None]]:
    return lambda traces: [value, value]


def reward(case: Case) -> float:
    """Score two traces by way of the rubric, so that there is a group, and return the reward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weights far beyond the cap are part of the test
        rubric = vf.Rubric(
            outcome=constant(case.outcome),
            penalties={
                f"p{i}": vf.Penalty(constant(value), weight)
                for i, (weight, value) in enumerate(case.penalties)
            },
            group_rewards={
                f"g{i}": vf.GroupReward(for_all(value), weight)
                for i, (weight, value) in enumerate(case.group)
            },
            cap=case.cap,
            floor=case.floor,
        )
    traces = [vf.Trace(environment="e", task=vf.Task("t", "p"), seed=seed) for seed in (0, 1)]

    async def score() -> None:
        for trace in traces:
            trace.score = await rubric.score(trace)
        await rubric.score_group(traces)

    asyncio.run(score())
    first, second = (trace.reward for trace in traces)
    assert first is not None
    assert first == second
    return first


@given(cases())
@SETTINGS
def test_the_reward_is_the_formula(case: Case) -> None:
    taken = min(case.cap, case.total)
    if case.outcome > 0:
        expected = case.floor + (1 - case.floor) * case.outcome * (1 - taken)
    else:
        expected = case.floor * (1 - taken / case.cap)
    assert reward(case) == expected


@given(cases())
@SETTINGS
def test_the_reward_is_bounded(case: Case) -> None:
    found = reward(case)
    assert 0.0 <= found <= 1.0
    if case.outcome == 0:
        assert found <= case.floor
    else:
        assert found >= case.floor + (1 - case.floor) * case.outcome * (1 - case.cap)
    if case.floor == 0:
        assert found <= case.outcome


@given(cases(), st.data())
@SETTINGS
def test_no_failure_beats_a_success_whatever_its_manners(case: Case, data: st.DataObject) -> None:
    """With the same rubric, and for an outcome that is not lost in rounding."""
    success = replace(case, outcome=data.draw(st.floats(1e-6, 1.0)))
    values = [data.draw(UNIT | st.none()) for _ in case.penalties]
    polite = tuple((w, value) for (w, _), value in zip(case.penalties, values, strict=True))
    failure = replace(case, outcome=0.0, penalties=polite)
    assert reward(failure) < reward(success)


@given(cases(), st.data())
@SETTINGS
def test_nothing_that_is_worse_pays(case: Case, data: st.DataObject) -> None:
    def between(low: float | None, high: float | None) -> float | None:
        return None if low is None or high is None else data.draw(st.floats(low, high))

    worse = replace(
        case,
        outcome=data.draw(st.floats(0.0, case.outcome)),
        penalties=tuple((weight, between(value, 1.0)) for weight, value in case.penalties),
        group=tuple((weight, between(0.0, value)) for weight, value in case.group),
    )
    assert reward(worse) <= reward(case)
