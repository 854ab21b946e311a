"""Reading answers: text, reasoning, tool calls, and everything that can be wrong with them."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vf.inference.parsing.families import PARSERS
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def parse(text: str, *, in_reasoning: bool = False) -> Message:
    return PARSERS["hermes"].parse(text, id_prefix="call_3", in_reasoning=in_reasoning)


def test_plain_text_is_the_content() -> None:
    message = parse("  hello ")
    assert (message.role, message.content, message.reasoning) == ("assistant", "hello", None)
    assert message.tool_calls == []


def test_closed_reasoning_is_split_from_the_text() -> None:
    message = parse("<think>\nhm\n</think>\n\nyes")
    assert (message.reasoning, message.content) == ("hm", "yes")


def test_unclosed_reasoning_takes_everything_and_calls_nothing() -> None:
    message = parse("<think>hm " + CALL)
    assert message.reasoning == "hm " + CALL
    assert (message.content, message.tool_calls) == ("", [])


def test_reasoning_may_have_been_opened_by_the_prompt() -> None:
    message = parse("hm</think>yes", in_reasoning=True)
    assert (message.reasoning, message.content) == ("hm", "yes")


def test_reasoning_opened_twice_is_not_doubled() -> None:
    assert parse("<think>hm</think>yes", in_reasoning=True).reasoning == "hm"


def test_a_call_inside_reasoning_is_not_made() -> None:
    message = parse(f"<think>{CALL}</think>{CALL}")
    assert len(message.tool_calls) == 1


def test_one_call_is_read_and_taken_out_of_the_text() -> None:
    message = parse(f"before {CALL} after")
    (call,) = message.tool_calls
    assert (call.id, call.name, call.malformed) == ("call_3_0", "add", None)
    assert json.loads(call.arguments) == {"a": 1}
    assert message.content == "before  after"


def test_parallel_calls_keep_their_order_and_get_ids_of_their_own() -> None:
    calls = parse(CALL + "\n" + CALL.replace("add", "sub")).tool_calls
    assert [(call.id, call.name) for call in calls] == [("call_3_0", "add"), ("call_3_1", "sub")]


def test_arguments_may_be_a_json_string() -> None:
    (call,) = parse(
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
    ).tool_calls
    assert call.arguments == '{"a": 1}'
    assert call.malformed is None


def test_a_call_without_arguments_has_none() -> None:
    (call,) = parse('<tool_call>{"name": "now"}</tool_call>').tool_calls
    assert (call.arguments, call.malformed) == ("{}", None)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('<tool_call>{"name": "add"}', "not closed"),
        ('<tool_call>{"name": "add"', "not closed"),
        ("<tool_call>", "not closed"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ("<tool_call>add(1)</tool_call>", "not valid JSON"),
        ('<tool_call>["add"]</tool_call>', "not a JSON object"),
        ("<tool_call>null</tool_call>", "not a JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "no 'name'"),
        ('<tool_call>{"name": ""}</tool_call>', "no 'name'"),
        ('<tool_call>{"name": 5}</tool_call>', "no 'name'"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "add", "arguments": ' + "9" * 5000 + "}</tool_call>", "JSON"),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', "written down"),
        ('<tool_call>{"name": "add", "arguments": "\\udfff"}</tool_call>', "written down"),
    ],
)
def test_a_call_that_cannot_be_read_is_kept_with_the_reason(raw: str, reason: str) -> None:
    (call,) = parse("text " + raw).tool_calls
    assert call.malformed is not None
    assert reason in call.malformed
    assert call.name == ""
    assert call.arguments in raw


@pytest.mark.parametrize("depth", range(900, 1000, 7))
def test_deep_nesting_near_the_recursion_limit_never_raises(depth: int) -> None:
    value = "[" * depth + "]" * depth
    calls = parse('<tool_call>{"name": "a", "arguments": ' + value + "}</tool_call>").tool_calls
    assert len(calls) == 1


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<tool_response>",
        "<|im_end|>",
        '{"name": "add", "arguments": {}}',
        '{"name": "\\ud800"}',
        "\n",
        '"',
        "{",
        "[",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=12).map("".join)


@given(text=TEXTS, in_reasoning=st.booleans())
def test_any_text_can_be_read_and_written_down_again(text: str, in_reasoning: bool) -> None:
    text = text.encode("utf-8", "replace").decode()
    message = parse(text, in_reasoning=in_reasoning)
    trace = Trace("e", Task("t", "p"), 0, messages=[message])
    assert Trace.from_json(trace.to_json()).messages == [message]


@given(text=TEXTS)
def test_every_call_region_gives_one_call(text: str) -> None:
    # A region runs from its opening tag to the next closing one, or to the end.
    regions, rest = 0, text
    while "<tool_call>" in rest:
        regions += 1
        rest = rest.partition("<tool_call>")[2].partition("</tool_call>")[2]
    message = parse("text " + text)
    assert len(message.tool_calls) == regions
    assert "<tool_call>" not in message.content


@given(
    names=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=5),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=6,
    ),
)
def test_well_formed_calls_come_back_as_they_were_written(names: list[str], value: object) -> None:
    calls = [json.dumps({"name": name, "arguments": {"v": value}}) for name in names]
    assume(not any("tool_call>" in call for call in calls))
    text = "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    read = parse(text).tool_calls
    assert [call.name for call in read] == names
    assert all(json.loads(call.arguments) == {"v": value} for call in read)
