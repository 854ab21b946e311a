"""The ready-made penalties against their formulas, written out naively."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from tests.rubrics.traces import Call, make_trace, penalty_of
from vf.rubrics import penalties
from vf.rubrics.penalties import (
    bad_format,
    extra_tool_calls,
    extra_turns,
    repeated_calls,
    repetition,
    tool_cost,
    tool_errors,
    verbosity,
)
from vf.rubrics.penalties.unread import warn_unread
from vf.runtime.errors import RubricError
from vf.traces.trace import ToolEventKind

SETTINGS = settings(deadline=None, max_examples=25)
KINDS = st.lists(st.sampled_from(get_args(ToolEventKind)), max_size=12)


def called(kinds: list[ToolEventKind], **info: Any) -> vf.Trace:
    """Return a trace with a call for each of these outcomes."""
    return make_trace([("add", {})] * len(kinds), kinds=kinds, **info)


@given(KINDS)
@SETTINGS
def test_tool_errors_is_the_share_of_calls_that_went_wrong(kinds: list[ToolEventKind]) -> None:
    wrong = [kind for kind in kinds if kind != "ok"]
    expected = len(wrong) / len(kinds) if kinds else 0.0
    assert penalty_of(tool_errors(), called(kinds)) == expected


@given(KINDS, st.integers(0, 8), st.integers(1, 6))
@SETTINGS
def test_extra_tool_calls_counts_calls_beyond_the_free_ones(
    kinds: list[ToolEventKind], free: int, scale: int
) -> None:
    extra = len(kinds) - free
    expected = 0.0 if extra <= 0 else 1.0 if extra >= scale else extra / scale
    fixed = extra_tool_calls(free=free, scale=scale)
    from_task = extra_tool_calls(free="needed", scale=scale)
    assert penalty_of(fixed, called(kinds)) == expected
    assert penalty_of(from_task, called(kinds, needed=free)) == expected


@given(st.lists(st.integers(1, 300), max_size=4), st.integers(0, 400), st.integers(1, 400))
@SETTINGS
def test_verbosity_is_a_linear_ramp_over_all_turns(
    tokens: list[int], free: int, scale: int
) -> None:
    over = sum(tokens) - free
    expected = 0.0 if over <= 0 else 1.0 if over >= scale else over / scale
    trace = make_trace(*["x"] * len(tokens), tokens=tokens)
    assert penalty_of(verbosity(free=free, scale=scale), trace) == expected


def test_they_are_named_after_themselves_and_carry_their_weight() -> None:
    rubric = vf.Rubric(
        outcome=lambda trace: 1.0,
        penalties=[tool_errors(0.1), extra_tool_calls(0.2), verbosity(0.3)],
    )
    weights = {name: penalty.weight for name, penalty in rubric.penalties.items()}
    assert weights == {"tool_errors": 0.1, "extra_tool_calls": 0.2, "verbosity": 0.3}


def test_a_task_without_the_named_info_is_an_error_not_a_penalty() -> None:
    with pytest.raises(RubricError, match=r"free = 'needed', but task 't' has no info\['needed'\]"):
        penalty_of(extra_tool_calls(free="needed"), make_trace())


@given(st.lists(st.sampled_from(["web", "cpu", "free"]), max_size=8))
@SETTINGS
def test_tool_cost_is_the_bill_over_the_budget(names: list[str]) -> None:
    bill = 3 * names.count("web") + names.count("cpu")
    penalty = tool_cost({"web": 3, "cpu": 1}, budget=10)
    assert penalty_of(penalty, make_trace([(name, {}) for name in names])) == min(1, bill / 10)


def test_failed_calls_and_unlisted_tools_can_cost_too() -> None:
    trace = make_trace([("web", {}), ("other", {})], kinds=["rejected", "unknown_tool"])
    assert penalty_of(tool_cost({"web": 1}, budget=4), trace) == 0.25
    assert penalty_of(tool_cost({"web": 1}, budget=4, other=2), trace) == 0.75


@given(st.integers(0, 9), st.integers(0, 4), st.integers(1, 5))
@SETTINGS
def test_extra_turns_is_a_ramp(turns: int, free: int, scale: int) -> None:
    trace = make_trace(*["x"] * turns, needed=free)
    expected = min(1.0, max(0, turns - free) / scale)
    assert penalty_of(extra_turns(free=free, scale=scale), trace) == expected
    assert penalty_of(extra_turns(free="needed", scale=scale), trace) == expected


def test_a_call_is_repeated_whatever_the_order_and_blanks_of_its_arguments() -> None:
    calls: list[Call] = [
        ("add", '{"a": 1, "b": 2}'),
        ("add", '{"b":2,"a":1}'),  # repeats
        ("add", '{"a": 1, "b": 3}'),
        ("sub", '{"a": 1, "b": 2}'),
        ("add", "not JSON"),
        ("add", "not JSON"),  # repeats
    ]
    trace = make_trace(*[[call] for call in calls])
    assert penalty_of(repeated_calls(scale=4), trace) == 0.5
    assert penalty_of(repeated_calls(scale=1), trace) == 1.0
    assert penalty_of(repeated_calls(ignore=["add"]), trace) == 0.0
    assert penalty_of(repeated_calls(ignore="add"), trace) == 0.0


def test_padding_with_other_calls_does_not_thin_repeats_out() -> None:
    same: list[Call] = [("look", "{}")] * 3
    padded: list[Call] = [*same, *(("look", json.dumps({"n": n})) for n in range(20))]
    assert penalty_of(repeated_calls(), make_trace(padded)) == 0.5
    assert penalty_of(repeated_calls(), make_trace(same)) == 0.5


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 3), st.floats(0, 0.9))
@SETTINGS
def test_repetition_is_the_share_of_n_grams_seen_before(
    words: list[str], n: int, free: float
) -> None:
    grams = [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
    seen = [gram for i, gram in enumerate(grams) if gram in grams[:i]]
    share = len(seen) / len(grams) if grams else 0.0
    expected = max(0.0, share - free) / (1 - free)
    trace = make_trace(" ".join(words))
    assert penalty_of(repetition(n=n, free=free), trace) == pytest.approx(expected, abs=1e-12)


def test_repetition_counts_reasoning_and_every_turn_but_not_what_others_said() -> None:
    trace = make_trace("one two three four", "one two three four")
    assert penalty_of(repetition(free=0), trace) == 0.5
    trace.messages[-1].content = "other words are here"
    assert penalty_of(repetition(free=0), trace) == 0.0
    trace.messages[-1].reasoning = "one two three four"
    assert penalty_of(repetition(free=0), trace) == pytest.approx(1 / 3)


def test_format_looks_at_the_last_message_or_at_all() -> None:
    pattern = r"Answer: \d+"
    trace = make_trace("hm", "Answer: 4")
    assert penalty_of(bad_format(pattern), trace) == 0.0
    assert penalty_of(bad_format(pattern, messages="all"), trace) == 0.5
    assert penalty_of(bad_format(pattern), make_trace("Answer: 4 or so")) == 1.0
    assert penalty_of(bad_format(pattern), make_trace()) == 1.0


def test_a_text_that_stalls_a_format_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vf.rubrics.penalties.patterns.TIMEOUT", 0.05)
    penalty = bad_format(r".*.*\d")
    assert penalty_of(penalty, make_trace("short")) == 1.0
    with pytest.warns(UserWarning, match=r"took longer than 0\.05 s"):
        assert penalty_of(penalty, make_trace("a" * 30_000)) == 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tool_cost({"a": -1}, 1), "the price of 'a' must be at least 0"),
        (lambda: tool_cost({"a": 1}, 0), "budget must be positive"),
        (lambda: tool_cost({"a": 0}, 1), "every price is 0"),
        (lambda: extra_tool_calls(scale=0), "extra_tool_calls: scale must be at least 1"),
        (lambda: verbosity(scale=0), "verbosity: scale must be at least 1"),
        (lambda: extra_turns(scale=0), "extra_turns: scale must be at least 1"),
        (lambda: repeated_calls(scale=0), "repeated_calls: scale must be at least 1"),
        (lambda: repetition(n=0), "n must be at least 1"),
        (lambda: repetition(free=1.0), "free must be at least 0 and below 1"),
        (lambda: bad_format("("), r"'bad_format': '\(' is not a regular expression"),
        (lambda: bad_format("a", messages=cast(Any, "first")), "must be 'last' or 'all'"),
    ],
)
def test_bad_settings_are_config_errors(make: Callable[[], vf.Penalty], said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "tools", "why"),
    [
        (tool_errors, [], "the environment has no tools"),
        (extra_tool_calls, [], "the environment has no tools"),
        (repeated_calls, [], "the environment has no tools"),
        (lambda: tool_cost({"web": 1}, 4), [], "the environment has no tools"),
        (lambda: tool_cost({"web": 1}, 4), ["wbe"], "no tool 'web'; there are: wbe"),
        (lambda: penalties.forbidden_calls({"sh*": None}), ["bash"], r"'sh\*'; there are: bash"),
        (penalties.code_timeouts, ["python"], r"step puts no Step.info\[.code_timeouts.\]"),
        (verbosity, ["web"], "does not tell the tokens"),
    ],
)
def test_a_penalty_that_finds_nothing_to_read_says_so_once_and_does_not_apply(
    make: Callable[[], vf.Penalty], tools: list[str], why: str
) -> None:
    trace = make_trace("said", tokens=[0], tools=tools)
    rubric = vf.Rubric(outcome=lambda trace: 1.0, penalties=[make()])
    warn_unread.cache_clear()
    with pytest.warns(UserWarning, match=f"environment 'e': .*{why}") as said:
        scores = [asyncio.run(rubric.score(trace)) for _ in range(3)]
    assert [(s.reward, *s.penalties.values()) for s in scores] == [(1.0, None)] * 3
    assert len(said) == 1


def test_a_gate_on_tools_that_are_not_there_says_so() -> None:
    rubric = vf.Rubric(lambda trace: 1.0, gates=[penalties.keeps_policy({"rm": None})])
    warn_unread.cache_clear()
    with pytest.warns(UserWarning, match="'keeps_policy' .* no tool 'rm'"):
        score = asyncio.run(rubric.score(make_trace("said")))
    assert score.gates == {"keeps_policy": None}


def test_a_call_that_no_tool_answers_is_something_to_read() -> None:
    trace = make_trace([("rm", {})], kinds=["unknown_tool"], tools=[])
    assert penalty_of(tool_errors(), trace) == 1.0
    assert penalty_of(penalties.forbidden_calls({"rm": None}), trace) == 1.0
