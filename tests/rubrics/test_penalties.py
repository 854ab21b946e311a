"""The ready-made penalties against their formulas, written out naively."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from vf.rubrics.penalties import extra_tool_calls, tool_errors, verbosity
from vf.runtime.errors import RubricError
from vf.traces.trace import ToolEvent, ToolEventKind, Turn

KINDS = st.lists(st.sampled_from(get_args(ToolEventKind)), max_size=12)
SETTINGS = settings(deadline=None, max_examples=25)


def make_trace(
    kinds: list[ToolEventKind], tokens: list[int] | None = None, **info: Any
) -> vf.Trace:
    return vf.Trace(
        environment="e",
        task=vf.Task("t", "p", info=info),
        seed=0,
        tools=[{"type": "function", "function": {"name": "add"}}],
        tool_events=[ToolEvent(0, str(i), "add", kind) for i, kind in enumerate(kinds)],
        turns=[Turn(9, count, "stop", 0.1) for count in tokens or ()],
    )


def penalty_of(penalty: vf.Penalty, trace: vf.Trace) -> float:
    rubric = vf.Rubric(outcome=lambda trace: 1.0, penalties=[penalty])
    [value] = asyncio.run(rubric.score(trace)).penalties.values()
    assert value is not None
    return value


@given(KINDS)
@SETTINGS
def test_tool_errors_is_the_share_of_calls_that_went_wrong(kinds: list[ToolEventKind]) -> None:
    wrong = [kind for kind in kinds if kind != "ok"]
    expected = len(wrong) / len(kinds) if kinds else 0.0
    assert penalty_of(tool_errors(), make_trace(kinds)) == expected


@given(KINDS, st.integers(0, 8), st.integers(1, 6))
@SETTINGS
def test_extra_tool_calls_counts_calls_beyond_the_free_ones(
    kinds: list[ToolEventKind], free: int, scale: int
) -> None:
    extra = len(kinds) - free
    expected = 0.0 if extra <= 0 else 1.0 if extra >= scale else extra / scale
    fixed = extra_tool_calls(free=free, scale=scale)
    from_task = extra_tool_calls(free="needed", scale=scale)
    assert penalty_of(fixed, make_trace(kinds)) == expected
    assert penalty_of(from_task, make_trace(kinds, needed=free)) == expected


@given(st.lists(st.integers(0, 300), max_size=4), st.integers(0, 400), st.integers(1, 400))
@SETTINGS
def test_verbosity_is_a_linear_ramp_over_all_turns(
    tokens: list[int], free: int, scale: int
) -> None:
    over = sum(tokens) - free
    expected = 0.0 if over <= 0 else 1.0 if over >= scale else over / scale
    assert penalty_of(verbosity(free=free, scale=scale), make_trace([], tokens)) == expected


def test_they_are_named_after_themselves_and_carry_their_weight() -> None:
    rubric = vf.Rubric(
        outcome=lambda trace: 1.0,
        penalties=[tool_errors(0.1), extra_tool_calls(0.2), verbosity(0.3)],
    )
    weights = {name: penalty.weight for name, penalty in rubric.penalties.items()}
    assert weights == {"tool_errors": 0.1, "extra_tool_calls": 0.2, "verbosity": 0.3}


def test_a_task_without_the_named_info_is_an_error_not_a_penalty() -> None:
    with pytest.raises(RubricError, match=r"free = 'needed', but task 't' has no info\['needed'\]"):
        penalty_of(extra_tool_calls(free="needed"), make_trace([]))


@pytest.mark.parametrize("make", [extra_tool_calls, verbosity])
def test_a_scale_below_one_is_a_config_error(make: Callable[..., vf.Penalty]) -> None:
    with pytest.raises(vf.ConfigError, match="scale must be at least 1"):
        make(scale=0)
