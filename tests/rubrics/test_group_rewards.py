"""Group rewards: what they say, who is in the group, and how they fail."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from tests.rubrics.traces import make_trace
from vf.rubrics.group import score_group
from vf.rubrics.group_rewards import best_of, diversity, pairwise, shorter
from vf.runtime.errors import RubricError
from vf.traces.trace import Failure, Score, StopReason

SETTINGS = settings(deadline=None, max_examples=25)


def parts(reward: vf.GroupReward, traces: Sequence[vf.Trace]) -> list[float | None]:
    """Return what a group reward says of scored traces, by way of a rubric."""
    rubric = vf.Rubric(lambda trace: 1.0, group_rewards={"it": reward})
    asyncio.run(rubric.score_group(traces))
    return [trace.score.parts["it"] if trace.score else math.nan for trace in traces]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=2, max_size=6))
@SETTINGS
def test_shorter_is_kimis_length_reward(group: list[tuple[int, bool]]) -> None:
    traces = [make_trace("x", tokens=[n], outcome=float(right)) for n, right in group]
    lengths = [n for n, _ in group]
    for (n, right), value in zip(group, parts(shorter(), traces), strict=True):
        if max(lengths) == min(lengths):
            expected = 0.0
        else:
            expected = 0.5 - (n - min(lengths)) / (max(lengths) - min(lengths))
            expected = expected if right else min(0.0, expected)
        assert value == pytest.approx(expected + 0.5)


def longer(a: vf.Trace, b: vf.Trace) -> float:
    return 0.5 if len(a.reply) == len(b.reply) else float(len(a.reply) > len(b.reply))


def test_pairwise_is_the_win_rate() -> None:
    traces = [make_trace(text, outcome=1.0) for text in ("aaa", "a", "aa", "a")]
    expected = [1.0, 0.5 / 3, 2 / 3, 0.5 / 3]
    assert parts(pairwise(longer), traces) == pytest.approx(expected)
    assert parts(pairwise(longer, both_orders=False), traces) == pytest.approx(expected)


def test_comparing_in_both_orders_undoes_a_preference_for_the_first() -> None:
    async def first(a: vf.Trace, b: vf.Trace) -> float:
        await asyncio.sleep(0)
        return 1.0

    traces = [make_trace(text, outcome=1.0) for text in "abc"]
    assert parts(pairwise(first), traces) == [0.5, 0.5, 0.5]
    assert parts(pairwise(first, both_orders=False), traces) == [1.0, 0.5, 0.0]


def test_a_comparison_that_fails_takes_the_others_along() -> None:
    asked, running = 0, 0

    async def compare(a: vf.Trace, b: vf.Trace) -> float:
        nonlocal asked, running
        asked, running = asked + 1, running + 1
        try:
            if asked < 6:
                await asyncio.Event().wait()
            raise OSError("the judge is gone")
        finally:
            running -= 1

    async def left() -> int:
        traces = [make_trace(text, outcome=1.0) for text in "abc"]
        with pytest.raises(RubricError, match="the judge is gone"):
            await vf.Rubric(lambda trace: 1.0, group_rewards=[pairwise(compare)]).score_group(
                traces
            )
        return running

    assert asyncio.run(left()) == 0
    assert asked == 6


def test_best_of_marks_the_best() -> None:
    traces = [make_trace("x", outcome=outcome) for outcome in (0.2, 0.7, 0.7, 0.0)]
    assert parts(best_of(), traces) == [0.0, 1.0, 1.0, 0.0]


def test_diversity_is_what_the_others_did_not_say() -> None:
    texts = ("the cat sat", "the cat sat", "the cat ran", "")
    traces = [make_trace(text, outcome=1.0) for text in texts]
    assert parts(diversity(), traces) == pytest.approx(
        [1 - (1 + 1 / 3) / 3, 1 - (1 + 1 / 3) / 3, 1 - 2 / 9, 1.0]
    )
    same = [make_trace(text, outcome=1.0) for text in ("", "")]
    assert parts(diversity(), same) == [0.0, 0.0]
    with pytest.raises(vf.ConfigError, match="diversity: n must be at least 1"):
        diversity(n=0)


def numbered(traces: Sequence[vf.Trace]) -> list[float]:
    return [index / 10 for index in range(len(traces))]


def test_only_those_with_a_reward_are_in_the_group() -> None:
    rubric = vf.Rubric(lambda trace: 1.0, group_rewards=[vf.GroupReward(numbered, 0.5)])
    failed, unscored = make_trace("x"), make_trace("x")
    failed.error = Failure("model", "ModelError", "gone", "")
    unscored.score = Score(None, None)
    traces = [failed, make_trace("x", outcome=1.0), unscored, make_trace("x", outcome=1.0)]
    asyncio.run(score_group(rubric, traces, 10.0))
    assert [trace.reward for trace in traces] == [None, 0.5, None, pytest.approx(0.55)]
    assert unscored.score == Score(None, None)


def test_alone_there_is_nothing_to_compare_with() -> None:
    def never(traces: Sequence[vf.Trace]) -> list[float]:
        raise AssertionError("called for a group of one")

    trace = make_trace("x", outcome=0.8)
    assert parts(vf.GroupReward(never), [trace]) == [None]
    assert trace.reward == 0.8


def test_a_gate_outlasts_the_group_stage() -> None:
    rubric = vf.Rubric(
        lambda trace: 1.0, gates=[lambda trace: trace.reply == "kept"], group_rewards=[numbered]
    )

    async def run() -> list[float | None]:
        traces = [make_trace("broken"), make_trace("kept")]
        for trace in traces:
            trace.score = await rubric.score(trace)
        await rubric.score_group(traces)
        return [trace.reward for trace in traces]

    assert asyncio.run(run()) == [0.0, pytest.approx(0.91)]


def returns(value: Any) -> Callable[[Sequence[vf.Trace]], Any]:
    def culprit(traces: Sequence[vf.Trace]) -> Any:
        return value

    return culprit


def broken(traces: Sequence[vf.Trace]) -> list[float]:
    raise KeyError("gold")


async def hangs(traces: Sequence[vf.Trace]) -> list[float]:
    await asyncio.Event().wait()
    return []


def too_good(a: vf.Trace, b: vf.Trace) -> float:
    return 2.0


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (returns([1.0]), "'culprit' returned 1 numbers for 2 traces"),
        (returns([1.0, math.nan]), "'culprit' returned nan"),
        (returns([1.0, 1.5]), r"'culprit' returned 1\.5, which is outside"),
        (returns(["a", "b"]), "'culprit' returned str, not a number"),
        (returns(0.5), "'culprit' raised TypeError"),
        (broken, "'broken' raised KeyError: 'gold'"),
        (pairwise(too_good).fn, r"'pairwise: too_good' returned 2\.0"),
    ],
)
def test_a_group_function_that_fails_is_an_error_naming_it(fn: Any, said: str) -> None:
    rubric = vf.Rubric(lambda trace: 1.0, group_rewards=[fn])
    traces = [make_trace("x", outcome=1.0), make_trace("x", outcome=1.0)]
    with pytest.raises(RubricError, match=said):
        asyncio.run(rubric.score_group(traces))


@pytest.mark.parametrize(
    ("fn", "said"), [(broken, "'broken' raised"), (hangs, "'hangs' took over")]
)
def test_where_it_fails_no_trace_keeps_half_a_reward(fn: Any, said: str) -> None:
    rubric = vf.Rubric(lambda trace: 1.0, group_rewards=[fn])
    lost = make_trace("x")
    lost.error = Failure("model", "ModelError", "gone", "")
    traces = [make_trace("x", outcome=1.0), make_trace("x", outcome=1.0), lost]
    for trace in traces:
        trace.stop_reason = StopReason.TERMINATED  # as it was: the episode is whole
    asyncio.run(score_group(rubric, traces, 0.2))
    for trace in traces[:2]:
        assert trace.reward is None
        assert trace.error is not None
        assert trace.error.boundary == "rubric"
        assert said in trace.error.message
        assert trace.stop_reason is StopReason.TERMINATED
    assert lost.error is not None
    assert lost.error.message == "gone"
