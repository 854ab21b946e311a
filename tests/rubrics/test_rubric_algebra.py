"""The reward's algebra: what no choice of weights, penalties and cap can break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

import vf

UNIT = st.floats(0.0, 1.0)
CAP = st.floats(0.0, 0.5)
PENALTIES = st.lists(
    st.tuples(st.floats(0.0, 1.0, exclude_min=True), UNIT), max_size=4
)  # weight, value
SETTINGS = settings(deadline=None, max_examples=60)


def constant(value: float) -> Callable[[vf.Trace], float]:
    return lambda trace: value


def reward(outcome: float, penalties: list[tuple[float, float]], cap: float = 0.5) -> float:
    rubric = vf.Rubric(
        outcome=constant(outcome),
        penalties=[
            vf.Penalty(constant(value), weight, name=f"p{index}")
            for index, (weight, value) in enumerate(penalties)
        ],
        cap=cap,
    )
    trace = vf.Trace(environment="e", task=vf.Task("t", "p"), seed=0)
    return asyncio.run(rubric.score(trace)).reward


@given(UNIT, PENALTIES, CAP)
@SETTINGS
def test_the_reward_is_the_formula(
    outcome: float, penalties: list[tuple[float, float]], cap: float
) -> None:
    total = sum(weight * value for weight, value in penalties)
    assert reward(outcome, penalties, cap) == outcome * (1 - min(cap, total))


@given(UNIT, PENALTIES, CAP)
@SETTINGS
def test_the_reward_lies_between_what_the_cap_leaves_and_the_outcome(
    outcome: float, penalties: list[tuple[float, float]], cap: float
) -> None:
    assert outcome * (1 - cap) <= reward(outcome, penalties, cap) <= outcome


@given(PENALTIES, PENALTIES, CAP)
@SETTINGS
def test_the_worst_success_beats_the_best_failure(
    of_success: list[tuple[float, float]], of_failure: list[tuple[float, float]], cap: float
) -> None:
    assert reward(1.0, of_success, cap) > reward(0.0, of_failure, cap) == 0.0


@given(UNIT, UNIT, PENALTIES, CAP)
@SETTINGS
def test_a_better_outcome_never_costs(
    a: float, b: float, penalties: list[tuple[float, float]], cap: float
) -> None:
    assert reward(min(a, b), penalties, cap) <= reward(max(a, b), penalties, cap)


@given(UNIT, PENALTIES.filter(bool), UNIT, CAP, st.data())
@SETTINGS
def test_a_worse_penalty_never_pays(
    outcome: float,
    penalties: list[tuple[float, float]],
    other: float,
    cap: float,
    data: st.DataObject,
) -> None:
    index = data.draw(st.integers(0, len(penalties) - 1))
    weight, value = penalties[index]
    mild, harsh = list(penalties), list(penalties)
    mild[index] = (weight, min(value, other))
    harsh[index] = (weight, max(value, other))
    assert reward(outcome, harsh, cap) <= reward(outcome, mild, cap)
