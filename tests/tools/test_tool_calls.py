"""Tool calls in a rollout: concurrent, ordered, and honest about what went wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import vf
from tests.waiting import until, wait_until
from vf.tools.tool_box import ToolBox

TASK = vf.Task("t", "Go.")


class Kitchen(vf.Environment):
    def __init__(self) -> None:
        self.asleep: list[str] = []

    @vf.tool
    def weigh(self, item: str, grams: int) -> dict[str, int]:
        if grams < 0:
            raise vf.ToolError("grams must not be negative")
        return {item: grams}

    @vf.tool
    async def nap(self, sleepers: int) -> str:
        self.asleep.append("nap")
        await until(lambda: len(self.asleep) >= sleepers)
        return "napped"

    @vf.tool
    def snooze(self, sleepers: int) -> str:
        self.asleep.append("snooze")
        wait_until(lambda: len(self.asleep) >= sleepers)
        return "snoozed"


def ask(*calls: vf.ToolCall) -> vf.Trace:
    model = vf.ScriptedModel([vf.Message("assistant", tool_calls=list(calls)), "Done."])
    return asyncio.run(vf.rollout(Kitchen(), TASK, model))


def test_a_tool_message_answers_its_call_and_the_loop_continues() -> None:
    trace = ask(vf.ToolCall("c9", "weigh", '{"item": "salt", "grams": 3}'))
    assert trace.messages[2] == vf.Message("tool", '{"salt":3}', tool_call_id="c9", name="weigh")
    [event] = trace.tool_events
    assert (event.turn, event.call_id, event.name, event.kind) == (0, "c9", "weigh", "ok")
    assert trace.stop_reason is vf.StopReason.TERMINATED
    assert trace.reply == "Done."


@pytest.mark.parametrize("name", ["nap", "snooze"])
def test_calls_of_one_turn_run_at_once(name: str) -> None:
    calls = [vf.ToolCall(str(index), name, '{"sleepers": 4}') for index in range(4)]
    trace = ask(*calls)  # each ends when all have begun
    assert [event.kind for event in trace.tool_events] == ["ok"] * 4


def test_tool_messages_stand_in_call_order_whoever_finishes_first() -> None:
    trace = ask(
        vf.ToolCall("slow", "nap", '{"sleepers": 2}'),
        vf.ToolCall("bad", "weigh", "{}"),
        vf.ToolCall("fast", "snooze", '{"sleepers": 1}'),
    )
    assert [message.tool_call_id for message in trace.messages[2:5]] == ["slow", "bad", "fast"]
    assert [event.call_id for event in trace.tool_events] == ["slow", "bad", "fast"]
    assert trace.messages[2].content == "napped"


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (vf.ToolCall("c", "weigh", "{grams"), "invalid_json", ["not valid JSON"]),
        (vf.ToolCall("c", "wiegh", "{}"), "unknown_tool", ["'wiegh'", "Did you mean 'weigh'?"]),
        (vf.ToolCall("c", "zzz", "{}"), "unknown_tool", ["'zzz'", "nap, snooze, weigh"]),
        (
            vf.ToolCall("c", "weigh", '{"item": "salt", "grams": "3"}'),
            "invalid_arguments",
            ["grams", "integer", '"3"'],
        ),
        (vf.ToolCall("c", "weigh", '{"grams": 3}'), "invalid_arguments", ["missing", "'item'"]),
        (
            vf.ToolCall("c", "weigh", '{"item": "a", "grams": 3, "spoon": 1}'),
            "invalid_arguments",
            ["unexpected", "'spoon'"],
        ),
        (vf.ToolCall("c", "", "{{", malformed="no closing tag"), "malformed", ["no closing tag"]),
        (
            vf.ToolCall("c", "weigh", '{"item": "salt", "grams": -1}'),
            "rejected",
            ["grams must not be negative"],
        ),
    ],
)
def test_a_wrong_call_is_reported_to_the_model_and_typed_for_the_rubric(
    call: vf.ToolCall, kind: str, words: list[str]
) -> None:
    trace = ask(call)
    message = trace.messages[2]
    assert (message.role, message.tool_call_id) == ("tool", "c")
    assert message.content.startswith("Error: ")
    for word in words:
        assert word in message.content
    [event] = trace.tool_events
    assert event.kind == kind
    assert event.detail
    assert trace.error is None
    assert trace.reply == "Done."


def test_a_tool_that_prints_the_word_error_is_not_an_error() -> None:
    def shout() -> str:
        return "Error: no"

    environment = vf.Environment()
    environment.tools = [shout]
    trace = asyncio.run(vf.rollout(environment, TASK, vf.ScriptedModel([{"shout": {}}, "Done."])))
    assert trace.messages[2].content == "Error: no"
    assert [event.kind for event in trace.tool_events] == ["ok"]


def test_events_carry_the_turn_of_their_call() -> None:
    line = {"weigh": {"item": "salt", "grams": 1}}
    model = vf.ScriptedModel([line, line, "Done."])
    trace = asyncio.run(vf.rollout(Kitchen(), TASK, model))
    assert [event.turn for event in trace.tool_events] == [0, 1]


def test_the_model_is_offered_functions_and_methods() -> None:
    def look(where: str) -> str:
        return where

    environment = Kitchen()
    environment.tools = [look]
    names = [schema["function"]["name"] for schema in environment.toolbox.schemas()]
    assert names == ["look", "nap", "snooze", "weigh"]


def test_two_tools_of_one_name_are_a_config_error() -> None:
    def weigh(item: str) -> str:
        return item

    environment = Kitchen()
    environment.tools = [weigh]
    with pytest.raises(vf.ConfigError, match="two tools are called 'weigh'"):
        asyncio.run(vf.rollout(environment, TASK, vf.ScriptedModel(["a"])))


def test_a_tool_that_returns_bytes_ends_the_rollout_and_is_named() -> None:
    def screenshot() -> bytes:
        return b"png"

    environment = Kitchen()
    environment.tools = [screenshot]
    model = vf.ScriptedModel([{"screenshot": {}}, "Done."])
    trace = asyncio.run(vf.rollout(environment, TASK, model))
    assert trace.error is not None
    assert (trace.error.boundary, trace.tool_events[0].kind) == ("tool", "error")
    assert "tool 'screenshot': it returned bytes; return text" in trace.error.message


def test_no_calls_give_no_messages() -> None:
    assert asyncio.run(ToolBox([]).run([], turn=0, timeout=1.0)) == []


@pytest.mark.parametrize("error", [vf.ToolError, ValueError])
def test_half_a_surrogate_pair_in_a_tools_error_can_be_written(error: type[Exception]) -> None:
    class Torn(Kitchen):
        @vf.tool
        def tear(self) -> str:
            """Tear."""
            raise error("so \ud83d")

    model = vf.ScriptedModel([vf.Message("assistant", tool_calls=[vf.ToolCall("c", "tear", "{}")])])
    trace = asyncio.run(vf.rollout(Torn(), vf.Task("t", "?"), model))
    assert "so ?" in trace.tool_events[0].detail
    assert vf.Trace.from_json(trace.to_json()).tool_events[0].detail == trace.tool_events[0].detail


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("weigh", {"item": "salt", "grams": "z" * 100_000}),
        ("weigh", {"z" * 100_000: 1}),
        ("weigh", {str(i): 1 for i in range(10_000)}),
        ("z" * 100_000, {}),
    ],
)
def test_an_error_repeats_only_the_beginning_of_a_wrong_call(
    name: str, arguments: dict[str, Any]
) -> None:
    trace = ask(vf.ToolCall("c", name, json.dumps(arguments)))
    assert trace.messages[2].content.startswith("Error: ")
    assert len(trace.messages[2].content) < 1000
    assert len(trace.tool_events[0].detail) < 1000
