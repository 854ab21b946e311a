"""A weighted sum: the usual one, brought into [0, 1] without changing any order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import vf
from vf.traces.trace import Score

# Not within rounding of an end, which is taken for the end.
UNIT = st.floats(1e-6, 1.0 - 1e-6) | st.sampled_from([0.0, 1.0])
TERMS = st.lists(st.tuples(st.floats(-3, 3), UNIT), min_size=1, max_size=5)
SETTINGS = settings(deadline=None, max_examples=40)


def make_trace() -> vf.Trace:
    return vf.Trace(environment="e", task=vf.Task("t", "p"), seed=0)


def constant(value: float | None) -> Callable[[vf.Trace], float | None]:
    return lambda trace: value


def score(terms: list[tuple[float, float | None]]) -> Score:
    functions = {f"f{i}": constant(value) for i, (_, value) in enumerate(terms)}
    rubric = vf.WeightedSum(functions, [weight for weight, _ in terms])
    return asyncio.run(rubric.score(make_trace()))


@given(TERMS)
@SETTINGS
def test_it_is_the_sum_between_the_least_and_the_most_it_can_be(
    terms: list[tuple[float, float]],
) -> None:
    weights = [weight for weight, _ in terms]
    low, high = sum(w for w in weights if w < 0), sum(w for w in weights if w > 0)
    assume(high - low > 1e-9)
    found = score([*terms])
    assert found.reward is not None
    assert 0.0 <= found.reward <= 1.0
    assert found.reward == found.outcome
    usual = sum(weight * value for weight, value in terms)
    assert found.reward == pytest.approx((usual - low) / (high - low))


def test_raw_values_are_recorded_and_a_weight_of_zero_makes_a_metric() -> None:
    found = score([(1.0, 0.5), (-1.0, 1.0), (0.0, -17.0)])
    assert found.parts == {"f0": 0.5, "f1": 1.0}
    assert found.metrics == {"f2": -17.0}
    assert found.reward == pytest.approx(0.25)


def test_what_does_not_apply_is_left_out_of_the_scale_too() -> None:
    assert score([(1.0, 0.5), (3.0, None)]).reward == 0.5
    nothing = score([(1.0, None), (0.0, 1.0)])
    assert nothing.reward is None
    assert nothing.outcome is None
    assert nothing.metrics == {"f1": 1.0}


def test_equal_weights_are_the_default() -> None:
    rubric = vf.WeightedSum({"a": constant(1.0), "b": constant(0.0)})
    assert asyncio.run(rubric.score(make_trace())).reward == 0.5


def test_a_group_reward_is_a_term_and_may_be_the_only_one() -> None:
    async def run(rubric: vf.WeightedSum) -> list[float | None]:
        traces = [make_trace(), make_trace()]
        for trace in traces:
            trace.score = await rubric.score(trace)
        await rubric.score_group(traces)
        return [trace.reward for trace in traces]

    first = vf.GroupReward(lambda traces: [1.0, 0.0], 1.0, name="first")
    both = vf.WeightedSum({"half": constant(0.5)}, [3.0], group_rewards=[first])
    assert asyncio.run(run(both)) == [0.625, 0.375]
    alone = vf.WeightedSum([], group_rewards=[first])
    assert asyncio.run(run(alone)) == [1.0, 0.0]


def test_a_name_shared_with_a_group_reward_is_a_config_error() -> None:
    first = vf.GroupReward(lambda traces: [1.0, 0.0], name="a")
    with pytest.raises(vf.ConfigError, match="two functions are called 'a'"):
        vf.WeightedSum({"a": constant(1.0)}, group_rewards=[first])
