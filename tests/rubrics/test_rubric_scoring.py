"""What a rubric accepts, and how it fails: loudly, by name, and never as a 0."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

import vf
from vf.rubrics.rubric import episode_return
from vf.runtime.errors import RubricError, SandboxError
from vf.traces.trace import Score


def make_trace(**fields: Any) -> vf.Trace:
    return vf.Trace(environment="e", task=vf.Task("t", "p", answer="4"), seed=0, **fields)


def score(rubric: vf.Rubric | vf.WeightedSum) -> Score:
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
    penalties = [vf.Penalty(one, 0.4, name="a"), vf.Penalty(one, 0.4, name="b")]
    assert score(vf.Rubric(one, penalties)).reward == pytest.approx(0.5)
    assert score(vf.Rubric(one, penalties, cap=0.45)).reward == pytest.approx(0.55)


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


Place = Callable[[Any], vf.Rubric | vf.WeightedSum]
PLACES: list[Place] = [
    lambda fn: vf.Rubric(outcome=fn),
    lambda fn: vf.Rubric(outcome=one, penalties=[fn]),
    lambda fn: vf.Rubric(outcome=one, gates=[fn]),
    lambda fn: vf.Rubric(outcome=one, metrics=[fn]),
    lambda fn: vf.WeightedSum([fn]),
]
NAMES = ["outcome", "penalty", "gate", "metric", "weighted sum"]
PLACE = pytest.mark.parametrize("place", PLACES, ids=NAMES)


@PLACE
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", [1.0], 1j])
def test_what_is_not_a_finite_number_is_an_error_naming_the_function(
    place: Place, value: object
) -> None:
    with pytest.raises(RubricError, match="'culprit' returned"):
        score(place(returns(value)))


@PLACE
@pytest.mark.parametrize(
    "fn",
    [raises(KeyError("gold")), raises(vf.ToolError("x")), raises(StopIteration()), culprit],
)
def test_a_function_that_raises_is_an_error_naming_it(place: Place, fn: Any) -> None:
    with pytest.raises(RubricError, match="'culprit' raised") as caught:
        score(place(fn))
    assert type(caught.value.__cause__).__name__ in str(caught.value)


@pytest.mark.parametrize("place", [*PLACES[:2], PLACES[-1]], ids=[*NAMES[:2], NAMES[-1]])
@pytest.mark.parametrize("value", [-0.001, 1.001])
def test_a_value_outside_zero_and_one_is_an_error_naming_the_function(
    place: Place, value: float
) -> None:
    with pytest.raises(RubricError, match=r"'culprit' returned .* outside \[0, 1\]"):
        score(place(returns(value)))


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(sum([0.1] * 10), 1.0), (0.4 * 3 - 0.2, 1.0), (0.3 - 0.1 * 3, 0.0), (1e-6, 1e-6)],
)
def test_a_value_within_rounding_of_an_end_is_the_end(value: float, outcome: float) -> None:
    result = score(vf.Rubric(returns(value)))
    assert (result.outcome, result.reward) == (outcome, outcome)


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
def test_a_wrong_signature_is_found_before_anything_runs(place: Place, fn: Any) -> None:
    with pytest.raises(vf.ConfigError, match=f"'{fn.__name__}' must take one argument"):
        place(fn)


def of_verifiers(completion: Any, **kwargs: Any) -> float:
    return 0.0


def test_a_function_for_verifiers_gets_an_error_that_says_what_a_scorer_takes() -> None:
    said = r"it takes \(completion.*\*\*kwargs.*trace\.reply, .*trace\.task\.answer"
    with pytest.raises(vf.ConfigError, match=said):
        vf.Rubric(of_verifiers)


@PLACE
def test_what_is_no_function_is_a_config_error(place: Place) -> None:
    with pytest.raises(vf.ConfigError, match=r"0\.5 is not a function"):
        place(0.5)


def nothing(trace: vf.Trace) -> None:
    return None


def test_none_is_not_zero() -> None:
    unscored = score(vf.Rubric(nothing, [one], metrics=[half]))
    assert unscored.reward is None
    assert unscored.outcome is None
    assert unscored.penalties == {"one": 1.0}
    assert unscored.metrics == {"half": 0.5}
    not_applicable = score(vf.Rubric(one, [nothing, half], gates=[nothing], metrics=[nothing]))
    assert not_applicable.reward == 0.95
    assert not_applicable.penalties == {"nothing": None, "half": 0.5}
    assert not_applicable.gates == not_applicable.metrics == {"nothing": None}


def test_a_violated_gate_voids_the_rollout_and_is_named() -> None:
    result = score(vf.Rubric(one, gates={"kept": one, "broken": lambda trace: False}))
    assert result.reward == 0.0
    assert result.outcome == 1.0
    assert result.gates == {"kept": True, "broken": False}
    # Also where the outcome cannot be told: else that would be a way round the gate.
    assert score(vf.Rubric(nothing, gates=[returns(0)])).reward == 0.0


def test_numpys_truth_is_truth() -> None:
    numpy = pytest.importorskip("numpy")
    rubric = vf.Rubric(
        outcome=lambda trace: numpy.float32(0.5),
        gates={"kept": lambda trace: numpy.array([1, 2]).all()},
        metrics={"broken": lambda trace: numpy.array([0]).any()},
    )
    found = asyncio.run(rubric.score(make_trace()))
    assert (found.reward, found.gates, found.metrics) == (0.5, {"kept": True}, {"broken": 0.0})


def test_a_gate_is_no_matter_of_degree() -> None:
    with pytest.raises(RubricError, match=r"'half' returned 0\.5: a gate says True or False"):
        score(vf.Rubric(one, gates=[half]))


def test_scores_survive_json_with_their_nones() -> None:
    rubric = vf.Rubric(nothing, [nothing], gates=[nothing, one], metrics=[half])
    trace = make_trace(score=score(rubric))
    assert vf.Trace.from_json(trace.to_json()).score == trace.score


def test_an_old_traces_file_without_gates_can_be_read() -> None:
    trace = make_trace(score=Score(0.5, 1.0))
    old = trace.to_json().replace(b',"gates":{},"parts":{}', b"")
    assert b"gates" not in old
    assert vf.Trace.from_json(old).score == trace.score


def test_slow_scorers_wait_for_each_other_no_longer_than_the_slowest() -> None:
    arrived = asyncio.Event()

    async def first(trace: vf.Trace) -> float:
        await asyncio.wait_for(arrived.wait(), 60)
        return 1.0

    async def second(trace: vf.Trace) -> float:
        arrived.set()
        return 0.0

    assert score(vf.Rubric(first, [second])).reward == 1.0


@pytest.mark.parametrize("error", [vf.ConfigError("no key"), SandboxError("lost")])
def test_what_is_not_the_rubrics_fault_keeps_its_name(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        score(vf.Rubric(raises(error)))


def no_group(traces: Any) -> list[float]:
    return []


WRONG: list[tuple[Callable[[], Any], str]] = [
    *((partial(vf.Penalty, half, w), "penalty 'half': weight") for w in (0.0, 1.01, math.nan)),
    *((partial(vf.Rubric, one, cap=cap), "cap must be in") for cap in (-0.1, 0.51, math.nan)),
    (lambda: vf.Rubric(one, [half, vf.Penalty(half)]), "two penalties are called 'half'"),
    (lambda: vf.Rubric(one, metrics=[half, half]), "two metrics are called 'half'"),
    (lambda: vf.Rubric(one, gates=[one, one]), "two gates are called 'one'"),
    (lambda: vf.WeightedSum([one, one]), "two functions are called 'one'"),
    (lambda: vf.Rubric(one, [half], cap=0.0), "cap = 0 leaves 'half' without effect"),
    (lambda: vf.Rubric(one, [vf.Penalty(half, 0.6)]), "'half': its weight 0.6 is above the"),
    (
        lambda: vf.Rubric(one, group_rewards=[vf.GroupReward(no_group, 0.3)], cap=0.2),
        "its weight 0.3 is above the cap 0.2",
    ),
    (lambda: vf.Rubric(one, [half], floor=0.11), r"floor must be in \[0, 0.1\], got 0.11"),
    (lambda: vf.Rubric(one, [half], floor=math.nan), "floor must be in"),
    (lambda: vf.Rubric(one, floor=0.1), "floor = 0.1 gives every failure the same reward"),
    (lambda: vf.Rubric(cast(Any, Judge)), "'Judge' is a class; pass an instance"),
    (lambda: vf.Rubric(one, cast(Any, half)), "penalties must be a list of functions"),
    (lambda: vf.WeightedSum([one], [1.0, 2.0]), "1 functions, but 2 weights"),
    (lambda: vf.WeightedSum([one, half], [0.0, 0.0]), "every weight is 0"),
    (lambda: vf.WeightedSum([one], [math.inf]), "the weight of 'one' is inf"),
    (lambda: vf.GroupReward(no_group, 0.0), "group reward 'no_group': weight must be above 0"),
    (lambda: vf.GroupReward(cast(Any, no_arguments)), "take one argument, the list of the"),
]


@pytest.mark.parametrize(("make", "said"), WRONG)
def test_what_cannot_have_its_effect_is_refused_at_once(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        make()


def test_weights_far_beyond_the_cap_are_warned_about() -> None:
    penalties = {name: vf.Penalty(half, 0.4) for name in "abc"}
    with pytest.warns(UserWarning, match=r"sum to 1\.2, over twice the cap 0\.5"):
        vf.Rubric(one, penalties)
