"""Anthropic's Messages, as the official client speaks them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference.endpoint.spoken import Spoken, answers, same, spoilt, survives
from tests.late import Late
from vf.inference.endpoint.anthropic import Anthropic
from vf.inference.endpoint.anthropic_blocks import UNREADABLE
from vf.inference.endpoint.dialect import Answered, ModelRequest, Refusal
from vf.inference.model import Reply
from vf.traces.messages import Message, ToolCall

anthropic = Late("anthropic")

LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
THINK = {"type": "enabled", "budget_tokens": 1024}
DONE = Reply(Message("assistant", "done"), "stop", 7, 3)
ASK: dict[str, Any] = {"model": "policy", "max_tokens": 99}


def talk(*replies: Reply | Refusal | Message) -> tuple[Spoken, Any]:
    made = [Reply(reply) if isinstance(reply, Message) else reply for reply in replies]
    spoken = Spoken(Anthropic(), made)
    return spoken, spoken.client(anthropic.Anthropic, anthropic.DefaultHttpxClient)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def read(**body: Any) -> ModelRequest:
    return Anthropic().read({**ASK, "messages": [user("hi")], **body}, {})


@settings(deadline=None, max_examples=25)
@given(message=answers(), thinking=st.booleans(), stream=st.booleans())
def test_the_blocks_of_an_answer_read_back_as_the_message(
    message: Message, thinking: bool, stream: bool
) -> None:
    spoken, client = talk(message, DONE)
    options: dict[str, Any] = {**ASK, "thinking": THINK} if thinking else ASK
    talked = [user("go")]
    if stream:
        with client.messages.stream(messages=talked, **options) as events:
            response = events.get_final_message()
    else:
        response = client.messages.create(messages=talked, **options)
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"of {call.id}"}
        for call in reversed(message.tool_calls)
    ]
    talked.append({"role": "assistant", "content": response.content})
    client.messages.create(messages=[*talked, user([*results, text("next")])], **options)

    asked, answer, *said = spoken.asked[-1].messages
    assert asked == Message("user", "go")
    assert same(answer, message, reasoning=thinking)
    assert answer.reasoning is None or thinking
    assert said == [
        *(
            Message("tool", f"of {call.id}", tool_call_id=call.id, name=call.name)
            for call in message.tool_calls
        ),
        Message("user", "next"),
    ]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("arguments", ["[1]", "{'a': 1}", " ", json.dumps({UNREADABLE: "x"})])
def test_arguments_that_are_not_an_object_are_kept_as_written(arguments: str) -> None:
    call = Message("assistant", tool_calls=[ToolCall("c1", "look", arguments)])
    spoken, client = talk(call, DONE)
    response = client.messages.create(messages=[user("go")], **ASK)
    assert response.content[0].input == {UNREADABLE: arguments}
    back = {"role": "assistant", "content": response.content}
    client.messages.create(messages=[user("go"), back, user("?")], **ASK)
    assert spoken.asked[-1].messages[1] == call


def test_a_request_says_all_that_it_wants() -> None:
    asked = read(
        system=[text("a"), text("b")],
        tools=[{**LOOK, "description": "Look.", "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        stop_sequences=["\n"],
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stream=True,
        metadata={"user_id": "me"},
        service_tier="auto",
    )
    assert asked.messages == [Message("system", "a\nb"), Message("user", "hi")]
    assert asked.sampling == {
        "max_tokens": 99,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop": ("\n",),
    }
    assert (asked.model, asked.stream) == ("policy", True)
    function = {"name": "look", "description": "Look.", "parameters": LOOK["input_schema"]}
    assert asked.tools == [{"type": "function", "function": function}]
    schema = {"name": "output", "schema": {"type": "object"}, "strict": True}
    assert asked.options == {
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


@pytest.mark.parametrize(("kind", "ours"), [("auto", "auto"), ("any", "required"), ("none",) * 2])
def test_tool_choice_is_openais(kind: str, ours: str) -> None:
    assert read(tool_choice={"type": kind}).options == {"tool_choice": ours}


def test_results_come_before_what_the_user_says() -> None:
    blocks = [
        text("now"),
        {"type": "tool_result", "tool_use_id": "c1", "content": [text("a"), text("b")]},
        {"type": "tool_result", "tool_use_id": "c2", "content": "gone", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c3"},
        text("go"),
    ]
    opaque = {"type": "redacted_thinking", "data": "?"}
    assistant = {"role": "assistant", "content": [opaque, text("Hm.")]}
    assert read(messages=[assistant, user(blocks)]).messages == [
        Message("assistant", "Hm."),
        Message("tool", "a\nb", tool_call_id="c1"),
        Message("tool", "Error: gone", tool_call_id="c2"),
        Message("tool", "", tool_call_id="c3"),
        Message("user", "now\ngo"),
    ]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(Message("assistant", "a")), "end_turn"),
        (Reply(Message("assistant", "a"), "length"), "max_tokens"),
        (Reply(Message("assistant", "a"), stop="###"), "stop_sequence"),
        (Reply(Message("assistant", tool_calls=[ToolCall("c1", "look", "{}")])), "tool_use"),
    ],
)
def test_an_answer_says_why_it_ended(reply: Reply, reason: str) -> None:
    _, client = talk(reply, reply)
    options = {**ASK, "messages": [user("go")], "stop_sequences": ["###"]}
    with client.messages.stream(**options) as events:
        streamed = events.get_final_message()
    for response in (client.messages.create(**options), streamed):
        assert (response.stop_reason, response.stop_sequence) == (reason, reply.stop)


def test_a_stream_has_its_events_in_order() -> None:
    message = Message("assistant", "I look.", "Hm.", [ToolCall("c1", "look", '{"at": "it"}')])
    _, client = talk(Reply(message, "stop", 7, 3))
    response = client.messages.with_streaming_response.create(
        messages=[user("go")], stream=True, thinking=THINK, **ASK
    )
    with response as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [
        event["delta"]["type"] if "index" in event and "delta" in event else event["type"]
        for event in events
    ] == [
        *("message_start", "ping"),
        *("content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 7
    assert events[-2]["usage"]["output_tokens"] == 3


FULL: dict[str, Any] = {
    **ASK,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        user([{"type": "text", "text": "go"}]),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "it"}},
            ],
        },
        user([{"type": "tool_result", "tool_use_id": "c1", "content": "seen", "is_error": True}]),
    ],
    "tools": [LOOK],
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "stop_sequences": ["#"],
    "thinking": THINK,
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
}


def test_whatever_is_sent_is_answered_or_refused() -> None:
    for body in spoilt(FULL):
        survives(Anthropic(), body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"max_tokens": None}, "max_tokens: "),
        ({"messages": []}, "messages: "),
        ({"temperature": 1.5}, "temperature: "),
        ({"messages": [user([{"type": "image", "source": {}}])]}, "messages[0].content[0]: "),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "last message"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "look", "input_schema": 3}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ],
)
def test_a_wrong_request_is_refused_by_its_field(body: dict[str, Any], said: str) -> None:
    _, client = talk(DONE)
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.post(
            "/v1/messages",
            body={**ASK, "messages": [user("hi")], **body},
            cast_to=dict[str, Any],
        )
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert said in caught.value.body["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error")),
        *((410, "not_found_error"), (413, "request_too_large"), (429, "rate_limit_error")),
        *((500, "api_error"), (503, "overloaded_error")),
    ],
)
def test_an_error_has_the_type_of_its_status(status: int, kind: str) -> None:
    _, client = talk(Refusal("no", status))
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(messages=[user("hi")], **ASK)
    assert caught.value.status_code == status
    assert caught.value.body == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_a_full_context_is_an_error_that_clients_know() -> None:
    refusal = Refusal("5 tokens > 4 maximum", code="context_length_exceeded")
    _, client = talk(refusal)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 5 tokens > 4"):
        client.messages.create(messages=[user("hi")], **ASK)


def test_a_stream_that_has_begun_can_fail() -> None:
    class Failing(Anthropic):
        def events(self, asked: ModelRequest, answered: Answered) -> Any:
            return self.failure(asked, Refusal("no", 503))

    spoken = Spoken(Failing(), [DONE])
    client = spoken.client(anthropic.Anthropic, anthropic.DefaultHttpxClient)
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        list(client.messages.create(messages=[user("hi")], stream=True, **ASK))
