"""Messages and OpenAI's chat format."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from vf.traces.messages import Role, as_messages

CALLS = st.lists(
    st.builds(vf.ToolCall, id=st.text(), name=st.text(), arguments=st.text(min_size=1)), max_size=3
)
MESSAGES = st.one_of(
    st.builds(
        vf.Message,
        role=st.sampled_from(["system", "user"]),
        content=st.text(),
    ),
    st.builds(
        vf.Message,
        role=st.just("assistant"),
        content=st.text(),
        reasoning=st.none() | st.text(min_size=1),
        tool_calls=CALLS,
    ),
    st.builds(
        vf.Message,
        role=st.just("tool"),
        content=st.text(),
        tool_call_id=st.text(),
        name=st.none() | st.text(),
    ),
)


@given(MESSAGES)
@settings(deadline=None, max_examples=25)
def test_a_message_survives_the_round_trip(message: vf.Message) -> None:
    assert vf.Message.from_openai(message.to_openai()) == message


def test_openai_form_of_a_tool_exchange() -> None:
    call = vf.ToolCall("c1", "add", '{"a": 1}')
    assert vf.Message("assistant", tool_calls=[call]).to_openai() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        ],
    }
    assert vf.Message("tool", "2", tool_call_id="c1", name="add").to_openai() == {
        "role": "tool",
        "content": "2",
        "tool_call_id": "c1",
        "name": "add",
    }


def test_what_other_apis_write_is_understood() -> None:
    assert vf.Message.from_openai({"role": "developer", "content": "x"}).role == "system"
    assert vf.Message.from_openai({"role": "assistant", "content": None}).content == ""
    assert vf.Message.from_openai({"role": "assistant", "reasoning": "hm"}).reasoning == "hm"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert vf.Message.from_openai({"role": "user", "content": parts}).content == "ab"
    call = {"id": "1", "function": {"name": "now", "arguments": ""}}
    read = vf.Message.from_openai({"role": "assistant", "tool_calls": [call]})
    assert read.tool_calls == [vf.ToolCall("1", "now", "{}")]


def test_arguments_that_are_an_object_become_its_json() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    message = vf.Message.from_openai({"role": "assistant", "tool_calls": [call]})
    assert message.tool_calls[0].arguments == '{"a": 1, "b": null}'


def test_half_a_surrogate_pair_never_keeps_a_trace_from_being_written() -> None:
    half = "\ud83d"
    call = {"id": "c1", "function": {"name": f"add{half}", "arguments": f'"{half}"'}}
    raw = {"role": "assistant", "content": f"é{half}", "reasoning": half, "tool_calls": [call]}
    trace = vf.Trace("e", vf.Task("t", "p"), seed=0)
    trace.messages = [*as_messages(f"p{half}"), vf.Message.from_openai(raw)]
    read = vf.Trace.from_json(trace.to_json())
    assert [message.content for message in read.messages] == ["p?", "é?"]
    assert read.messages[1].reasoning == "?"
    assert read.messages[1].tool_calls[0] == vf.ToolCall("c1", "add?", '"?"')


@pytest.mark.parametrize("role", ["User", "", None, "function"])
def test_an_unknown_role_is_named_with_the_known_ones(role: Any) -> None:
    with pytest.raises(vf.ConfigError) as caught:
        vf.Message.from_openai({"role": role, "content": "x"})
    assert repr(role) in str(caught.value)
    for known in get_args(Role):
        assert known in str(caught.value)


@pytest.mark.parametrize(
    "content", [3, {"text": "a"}, [3], [{"type": "input_audio"}], [{"type": "text"}]]
)
def test_content_that_is_not_text_is_refused(content: Any) -> None:
    with pytest.raises(vf.ConfigError, match="content must be text"):
        vf.Message.from_openai({"role": "user", "content": content})
    with pytest.raises(vf.ConfigError, match="content must be text"):
        vf.Message("user", content)


def test_what_is_not_supported_is_named() -> None:
    spoken: Any = [{"type": "text", "text": "What?"}, {"type": "input_audio", "input_audio": {}}]
    with pytest.raises(vf.ConfigError, match=r"'input_audio': audio .* not supported"):
        vf.Message("user", spoken)


@pytest.mark.parametrize("call", ["add", {}, {"function": None}, {"function": {"arguments": "{}"}}])
def test_a_tool_call_without_a_named_function_is_refused(call: object) -> None:
    with pytest.raises(vf.ConfigError, match="tool call"):
        vf.Message.from_openai({"role": "assistant", "tool_calls": [call]})


def test_prompts_of_every_form() -> None:
    own = vf.Message("user", "b")
    assert as_messages("a") == [vf.Message("user", "a")]
    assert as_messages([{"role": "system", "content": "s"}]) == [vf.Message("system", "s")]
    given_list = [own]
    copied = as_messages(given_list)
    assert copied == given_list
    assert copied is not given_list


@pytest.mark.parametrize("prompt", [None, 3, {"role": "user"}, ["text"], [3]])
def test_a_prompt_of_another_kind_is_a_config_error(prompt: Any) -> None:
    with pytest.raises(vf.ConfigError, match="prompt"):
        as_messages(prompt)
