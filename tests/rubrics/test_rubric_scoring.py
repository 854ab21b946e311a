"""What a rubric accepts, and how it fails: loudly, by name, and never as a 0."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

import vf
from vf.rubrics.rubric import episode_return
from vf.traces.errors import RubricError


def make_trace(**fields: Any) -> vf.Trace:
    return vf.Trace(environment="e", task=vf.Task("t", "p", answer="4"), seed=0, **fields)


def score(rubric: vf.Rubric) -> vf.Score:
    return asyncio.run(rubric.score(make_trace()))


def half(trace: vf.Trace) -> float:
    return 0.5


def one(trace: vf.Trace) -> bool:
    return True


async def slowly(trace: vf.Trace) -> float:
    await asyncio.sleep(0)
    return 0.25


class Judge:
    async def __call__(self, trace: vf.Trace) -> float:
        await asyncio.sleep(0)
        return float(trace.task.answer) / 8


def test_every_part_is_recorded_under_its_name() -> None:
    rubric = vf.Rubric(
        outcome=one,
        penalties=[vf.Penalty(half, weight=0.4), vf.Penalty(one, weight=0.1, name="late")],
        metrics={"words": lambda trace: -17},
    )
    result = score(rubric)
    assert result.reward == pytest.approx(0.7)
    assert result.outcome == 1.0
    assert result.penalties == {"half": 0.5, "late": 1.0}
    assert result.metrics == {"words": -17.0}


def test_a_plain_function_is_a_penalty_of_a_tenth() -> None:
    assert score(vf.Rubric(outcome=one, penalties=[one])).reward == pytest.approx(0.9)


def test_all_penalties_together_take_no_more_than_the_cap() -> None:
    penalties = [vf.Penalty(one, 0.9, name="a"), vf.Penalty(one, 0.9, name="b")]
    assert score(vf.Rubric(one, penalties)).reward == pytest.approx(0.5)
    assert score(vf.Rubric(one, penalties, cap=0.2)).reward == pytest.approx(0.8)


def test_coroutines_and_callable_objects_score_too() -> None:
    result = score(vf.Rubric(outcome=Judge(), penalties=[vf.Penalty(slowly, 0.4)], metrics=[half]))
    assert result.outcome == 0.5
    assert result.reward == pytest.approx(0.5 * (1 - 0.4 * 0.25))
    assert result.metrics == {"half": 0.5}


def test_the_default_outcome_is_the_sum_of_step_rewards() -> None:
    assert episode_return(make_trace(step_rewards=[0.25, 0.5])) == 0.75


def returns(value: Any) -> Callable[[vf.Trace], Any]:
    def culprit(trace: vf.Trace) -> Any:
        return value

    return culprit


def raises(error: Exception) -> Callable[[vf.Trace], Any]:
    def culprit(trace: vf.Trace) -> Any:
        raise error

    return culprit


async def culprit(trace: vf.Trace) -> float:
    await asyncio.sleep(0)
    raise TimeoutError("judge")


PLACES: list[Callable[[Any], vf.Rubric]] = [
    lambda fn: vf.Rubric(outcome=fn),
    lambda fn: vf.Rubric(outcome=one, penalties=[fn]),
    lambda fn: vf.Rubric(outcome=one, metrics=[fn]),
]
PLACE = pytest.mark.parametrize("place", PLACES, ids=["outcome", "penalty", "metric"])


@PLACE
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1", [1.0], 1j])
def test_what_is_not_a_finite_number_is_an_error_naming_the_function(
    place: Callable[[Any], vf.Rubric], value: object
) -> None:
    with pytest.raises(RubricError, match="'culprit' returned"):
        score(place(returns(value)))


@PLACE
@pytest.mark.parametrize(
    "fn",
    [raises(KeyError("gold")), raises(vf.InvalidToolUse("x")), raises(StopIteration()), culprit],
)
def test_a_function_that_raises_is_an_error_naming_it(
    place: Callable[[Any], vf.Rubric], fn: Any
) -> None:
    with pytest.raises(RubricError, match="'culprit' raised") as caught:
        score(place(fn))
    assert type(caught.value.__cause__).__name__ in str(caught.value)


@pytest.mark.parametrize("place", PLACES[:2], ids=["outcome", "penalty"])
@pytest.mark.parametrize("value", [-0.001, 1.001, 2, -1])
def test_outcomes_and_penalties_outside_zero_and_one_are_errors(
    place: Callable[[Any], vf.Rubric], value: float
) -> None:
    with pytest.raises(RubricError, match=r"'culprit' returned .* outside \[0, 1\]"):
        score(place(returns(value)))


def test_a_named_penalty_is_reported_by_its_name() -> None:
    with pytest.raises(RubricError, match="'late' returned"):
        score(vf.Rubric(one, [vf.Penalty(returns(math.nan), name="late")]))


def two_arguments(trace: vf.Trace, answer: str) -> float:
    return 0.0


def no_arguments() -> float:
    return 0.0


def keyword_only(*, trace: vf.Trace) -> float:
    return 0.0


@PLACE
@pytest.mark.parametrize("fn", [two_arguments, no_arguments, keyword_only])
def test_a_wrong_signature_is_found_before_anything_runs(
    place: Callable[[Any], vf.Rubric], fn: Any
) -> None:
    with pytest.raises(vf.ConfigError, match=f"'{fn.__name__}' must take one argument"):
        place(fn)


def test_a_wrong_signature_is_found_in_a_named_penalty_too() -> None:
    wrong: Any = two_arguments
    with pytest.raises(vf.ConfigError, match="'two_arguments' must take one argument"):
        vf.Rubric(one, [vf.Penalty(wrong, name="late")])


@PLACE
def test_what_is_no_function_is_a_config_error(place: Callable[[Any], vf.Rubric]) -> None:
    with pytest.raises(vf.ConfigError, match=r"0\.5 is not a function"):
        place(0.5)


def test_duplicate_names_are_config_errors() -> None:
    with pytest.raises(vf.ConfigError, match="two penalties are called 'half'"):
        vf.Rubric(one, [half, vf.Penalty(half)])
    with pytest.raises(vf.ConfigError, match="two metrics share a name"):
        vf.Rubric(one, metrics=[half, half])


@pytest.mark.parametrize("weight", [0.0, -0.1, 1.01, math.nan, math.inf])
def test_a_weight_out_of_range_is_a_config_error_naming_the_penalty(weight: float) -> None:
    with pytest.raises(vf.ConfigError, match="penalty 'half': weight"):
        vf.Penalty(half, weight)


@pytest.mark.parametrize("cap", [-0.1, 0.51, math.nan])
def test_a_cap_out_of_range_is_a_config_error(cap: float) -> None:
    with pytest.raises(vf.ConfigError, match="cap must be in"):
        vf.Rubric(one, cap=cap)
