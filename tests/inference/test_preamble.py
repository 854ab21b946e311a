"""Leaving the tools out of the bridge is proved from the template, and changes no token."""

from __future__ import annotations

from typing import Any

import pytest

from docs.make_template_table import renderer, templates
from tests.inference.chat_templates import tokenizer
from vf.inference.rendering.probe_script import TOOLS
from vf.inference.rendering.renderer import BridgeError, Renderer
from vf.inference.rendering.tools_lead import tools_only_lead
from vf.traces.messages import Message, ToolCall

TAIL = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
PROVED = [
    "{% if tools %}{{ tools | tojson }}{% endif %}" + TAIL,
    "{% for tool in tools %}{{ loop.index }}{{ tool }}{% endfor %}" + TAIL,
    "{% if tools %}{{ messages[0].content }}{{ tools }}{% endif %}{% set a = 1 %}" + TAIL,
    "{% set a = namespace(b=1) %}{% if tools %}{{ tools }}{% endif %}" + TAIL,
    TAIL,
]
NOT_PROVED = [
    TAIL + "{{ tools }}",
    "{% if tools %}{% set a = 1 %}{% endif %}" + TAIL,
    "{% set a = tools %}" + TAIL + "{{ a }}",
    "{% set a = namespace() %}{% if tools %}{% set a.b = 1 %}{% endif %}" + TAIL,
    "{% if tools %}{{ raise_exception('no') }}{% endif %}" + TAIL,
    "{% if tools %}{{ messages[-1].content }}{% endif %}" + TAIL,
    "{% if tools %}{{ messages[1].content }}{% endif %}" + TAIL,
    "{% macro a() %}{{ tools }}{% endmacro %}" + TAIL + "{{ a() }}",
    "{% for m in messages %}{{ m.content }}{{ tools }}{% endfor %}",
    "{% set rest = messages %}{% if tools %}{{ rest[1].content }}{% endif %}" + TAIL,
    "{% with a = tools %}{{ a }}{% endwith %}" + TAIL,
    "{% generation %}{{ tools }}{% endgeneration %}" + TAIL,
    "{% if tools %}",
]
RAIN = Message("tool", "rain", tool_call_id="call_0_0", name="weather")
AGAIN = Message("user", "And tomorrow?")
LED = [name for name, template in templates().items() if tools_only_lead(template)]


@pytest.mark.parametrize("template", PROVED)
def test_tools_that_only_lead_are_recognised(template: str) -> None:
    assert tools_only_lead(template)


@pytest.mark.parametrize("template", NOT_PROVED)
def test_tools_that_may_show_later_are_not_taken_for_leading(template: str) -> None:
    assert not tools_only_lead(template)


def test_nothing_is_proved_of_several_templates_by_name() -> None:
    assert not tools_only_lead({"default": TAIL, "tool_use": TAIL})


def test_the_families_with_tools_are_among_those_proved() -> None:
    assert {"qwen2_5", "qwen3", "qwen3_instruct_2507", "glm4moe"} <= set(LED)


def bridge(shown: Renderer, calls: int, new: list[Message], last: int | None) -> list[int] | str:
    said = [ToolCall(f"call_0_{place}", "weather", "{}") for place in range(calls)]
    try:
        return shown.bridge(Message("assistant", "", tool_calls=said), new, TOOLS, last)
    except BridgeError as error:
        return str(error)


@pytest.mark.parametrize("name", LED)
def test_the_bridge_is_the_same_with_and_without_the_tools(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = renderer(name)
    for calls in (0, 1, 2):
        for new in ([AGAIN], [RAIN], [RAIN, RAIN], [RAIN, AGAIN]):
            for last in (None, *shown.stop_token_ids):
                monkeypatch.setattr(shown.template, "tools_only_lead", True)
                without = bridge(shown, calls, new, last)
                monkeypatch.setattr(shown.template, "tools_only_lead", False)
                assert without == bridge(shown, calls, new, last)


class Unread(dict[str, Any]):
    def __repr__(self) -> str:
        raise AssertionError("the tools were written down")


@pytest.mark.parametrize("name", LED)
def test_a_turn_costs_nothing_for_tools_that_only_lead(name: str) -> None:
    shown = renderer(name)
    tools = [Unread(tool) for tool in TOOLS]
    expected = shown.bridge(Message("assistant", "Hi."), [AGAIN], TOOLS)
    assert shown.bridge(Message("assistant", "Hi."), [AGAIN], tools) == expected


def test_an_opening_is_rendered_once_and_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Renderer(tokenizer())
    rendered, prompt = [], shown.prompt

    def counted(messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        rendered.append(messages)
        return prompt(messages, tools)

    monkeypatch.setattr(shown, "prompt", counted)
    messages = [Message("user", "x")]
    first = shown.opening(messages, TOOLS)
    first.append(7)  # as a branch grows
    assert shown.opening([Message("user", "x")], list(TOOLS)) == prompt(messages, TOOLS)
    assert len(rendered) == 1


def test_openings_that_differ_anywhere_are_distinguished() -> None:
    shown = Renderer(tokenizer())
    message = Message("user", "x")
    for _ in range(2):
        for messages, tools in (
            ([message], []),
            ([message], TOOLS),
            ([Message("user", "y")], TOOLS),
            ([Message("system", "x"), message], TOOLS),
        ):
            assert shown.opening(messages, tools) == shown.prompt(messages, tools)
    message.content = "changed in place"
    assert shown.opening([message], []) == shown.prompt([message], [])


def test_old_renderings_make_room_for_new_ones() -> None:
    shown = Renderer(tokenizer())
    for number in range(300):
        message = Message("user", str(number))
        assert shown.opening([message], []) == shown.prompt([message], [])
    assert len(shown._cached) <= 256
    reply = Message("assistant", "yes")
    assert shown.bridge(reply, [message], []) == shown.bridge(reply, [message], [])
    assert shown.bridge(reply, [message], []) != shown.bridge(reply, [Message("user", "x")], [])
