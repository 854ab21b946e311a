"""Forbidden calls and unsafe content, as penalties and as gates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

import vf
from tests.rubrics.traces import Call, gate_of, make_trace, penalty_of
from vf.rubrics.penalties import forbidden_calls, keeps_policy, safe_content, unsafe_content
from vf.runtime.errors import RubricError

RULES = {"delete_*": None, "bash": r"rm\s+-rf|curl"}
BROKEN: list[Call] = [
    ("delete_file", {}),
    ("delete_", "not JSON"),
    ("bash", {"command": "rm  -rf /"}),
    ("bash", {"options": {"steps": ["ls", "curl x"]}}),
    ("bash", r'{"command": "\u0072m -rf /"}'),  # escaped
    ("bash", {"rm -rf": 1}),  # as a name
    ("bash", "rm -rf"),  # not JSON
]
KEPT: list[Call] = [
    ("delet", {}),
    ("Delete_file", {}),
    ("bash", {"command": "rm x"}),
    ("python", {"code": "curl"}),
]


@pytest.mark.parametrize("call", BROKEN)
def test_a_forbidden_call_is_found_however_it_is_written(call: Call) -> None:
    trace = make_trace([("look", {}), call])
    assert penalty_of(forbidden_calls(RULES), trace) == 1.0
    assert not gate_of(keeps_policy(RULES), trace)


@pytest.mark.parametrize("call", KEPT)
def test_other_calls_are_free(call: Call) -> None:
    trace = make_trace("rm -rf / and curl, by delete_file", [call])
    assert penalty_of(forbidden_calls(RULES), trace) == 0.0
    assert gate_of(keeps_policy(RULES), trace)


def test_a_refused_call_counts_and_one_that_could_not_be_read_does_not() -> None:
    call: Call = ("delete_file", {})
    assert penalty_of(forbidden_calls(RULES), make_trace([call], kinds=["rejected"])) == 1.0
    assert penalty_of(forbidden_calls(RULES), make_trace([call], kinds=["malformed"])) == 0.0


def test_several_forbidden_calls_make_a_ramp() -> None:
    calls: list[Call] = [("delete_file", {})] * 3
    assert penalty_of(forbidden_calls(RULES, scale=4), make_trace(calls)) == 0.75


def test_patterns_find_unsafe_text_wherever_the_model_wrote_it() -> None:
    penalty = unsafe_content(["sk-[a-z]{4}", "bomb"])
    assert penalty_of(penalty, make_trace("all is well")) == 0.0
    assert penalty_of(penalty, make_trace("a BOMB", "never mind")) == 1.0
    assert penalty_of(penalty, make_trace([("send", {"key": "sk-abcd"})], "sent")) == 1.0
    thought = make_trace("fine")
    thought.messages[-1].reasoning = "a bomb?"
    assert penalty_of(penalty, thought) == 1.0
    assert gate_of(safe_content("bomb"), make_trace("all is well"))
    assert not gate_of(safe_content("bomb"), thought)


def test_what_others_wrote_is_not_the_models_doing() -> None:
    trace = make_trace([("x", {})], "y")
    assert any("forbidden" in message.content for message in trace.messages)
    assert penalty_of(unsafe_content("forbidden|prompt|not sampled"), trace) == 0.0


def test_a_classifier_may_be_plain_or_async_and_sees_all_that_was_written() -> None:
    seen: list[str] = []

    def plain(text: str) -> float:
        seen.append(text)
        return 0.25

    async def waits(text: str) -> float:
        await asyncio.sleep(0)
        return 0.75

    trace = make_trace("one", [("send", {"to": "x"})])
    assert penalty_of(unsafe_content(plain), trace) == 0.25
    assert seen[0].splitlines() == ["one", '{"to": "x"}', "to", "x"]
    assert penalty_of(unsafe_content(waits), trace) == 0.75
    assert gate_of(safe_content(plain), trace)
    assert not gate_of(safe_content(waits), trace)
    assert not gate_of(safe_content(plain, threshold=0.25), trace)


def test_an_empty_reply_is_not_unsafe() -> None:
    def never(text: str) -> float:
        raise AssertionError("asked about nothing")

    assert penalty_of(unsafe_content(never), make_trace()) == 0.0
    assert gate_of(safe_content(never), make_trace())


def test_a_classifier_out_of_range_is_an_error_naming_it() -> None:
    def percent(text: str) -> float:
        return 73.0

    with pytest.raises(RubricError, match=r"percent' returned 73\.0, which is outside"):
        penalty_of(unsafe_content(percent), make_trace("x"))
    with pytest.raises(RubricError, match=r"percent' returned 73\.0"):
        gate_of(safe_content(percent), make_trace("x"))


def two(text: str, more: str) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: forbidden_calls({}), "forbidden_calls: name what is forbidden"),
        (lambda: keeps_policy(cast(Any, ["bash"])), "keeps_policy: name what is forbidden: a dict"),
        (lambda: forbidden_calls({"a": "("}), "'forbidden_calls': .* not a regular expression"),
        (lambda: forbidden_calls({"a": None}, scale=0), "scale must be at least 1"),
        (lambda: unsafe_content([]), "'unsafe_content': there is no pattern"),
        (lambda: unsafe_content(cast(Any, two)), "'two' must take one argument, a text"),
        (lambda: safe_content("x", threshold=0.0), "threshold must be above 0"),
    ],
)
def test_bad_settings_are_config_errors(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        make()
