"""The Responses API, as the official client speaks it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference.endpoint.spoken import Spoken, answers, same, spoilt, survives
from vf.inference.endpoint.dialect import Answered, ModelRequest, Refusal
from vf.inference.endpoint.responses import Responses
from vf.inference.model import Reply
from vf.traces.messages import Message, ToolCall

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
DONE = Reply(Message("assistant", "done"), "stop", 7, 3)


def talk(*replies: Reply | Refusal | Message | str) -> tuple[Spoken, Any]:
    made = [
        Reply(Message("assistant", reply)) if isinstance(reply, str) else reply for reply in replies
    ]
    spoken = Spoken(Responses(), [Reply(r) if isinstance(r, Message) else r for r in made])
    return spoken, spoken.client(openai.OpenAI, openai.DefaultHttpxClient)


def read(**body: Any) -> ModelRequest:
    return Responses().read({"model": "policy", "input": "hi", **body}, {})


@settings(deadline=None, max_examples=40)
@given(
    message=answers(),
    include=st.booleans(),
    summary=st.booleans(),
    stream=st.booleans(),
    ids=st.booleans(),
)
def test_the_items_of_an_answer_read_back_as_one_message(
    message: Message, include: bool, summary: bool, stream: bool, ids: bool
) -> None:
    spoken, client = talk(message, DONE)
    options: dict[str, Any] = {"model": "policy"}
    if include:
        options["include"] = ["reasoning.encrypted_content"]
    if summary:
        options["reasoning"] = {"summary": "auto"}
    talked: list[Any] = [{"role": "user", "content": "go"}]
    if stream:
        with client.responses.stream(input=talked, **options) as events:
            response = events.get_final_response()
    else:
        response = client.responses.create(input=talked, **options)
    items = [item.to_dict() for item in response.output]
    if not ids:
        for item in items:
            del item["id"]
    # Clients that ask for encrypted reasoning keep nothing else of it.
    if include and items[0]["type"] == "reasoning":
        items[0] |= {"summary": [], "content": None}
    outputs = [
        {"type": "function_call_output", "call_id": call.id, "output": f"of {call.id}"}
        for call in reversed(message.tool_calls)
    ]
    client.responses.create(input=[*talked, *items, *outputs], **options)

    user, answer, *results = spoken.asked[-1].messages
    assert user == Message("user", "go")
    assert same(answer, message)
    assert results == [
        Message("tool", f"of {call.id}", tool_call_id=call.id, name=call.name)
        for call in message.tool_calls
    ]


def test_output_is_sent_back_as_people_do() -> None:
    first = Message("assistant", "I look.", "Hm.", [ToolCall("c1", "look", '{"at": "it"}')])
    spoken, client = talk(first, "A cat.")
    talked: list[Any] = [{"role": "user", "content": "What is it?"}]
    response = client.responses.create(model="policy", input=talked, tools=[LOOK])
    talked += response.output
    talked.append({"type": "function_call_output", "call_id": "c1", "output": "a cat"})
    response = client.responses.create(model="policy", input=talked, tools=[LOOK])

    assert response.output_text == "A cat."
    assert spoken.asked[-1].messages == [
        Message("user", "What is it?"),
        first,
        Message("tool", "a cat", tool_call_id="c1", name="look"),
    ]


def test_results_between_an_answers_calls_do_not_divide_it() -> None:
    calls = [ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")]
    spoken, client = talk(Message("assistant", tool_calls=calls), DONE)
    one, two = client.responses.create(model="policy", input="go").output
    seen = [
        {"type": "function_call_output", "call_id": call.id, "output": "seen"} for call in calls
    ]
    client.responses.create(model="policy", input=[one, seen[0], two, seen[1]])
    answer, *results = spoken.asked[-1].messages
    assert answer.tool_calls == calls
    assert [result.tool_call_id for result in results] == ["c1", "c2"]


def test_two_answers_in_a_row_stay_two() -> None:
    spoken, client = talk("one", "two", DONE)
    talked = [*client.responses.create(model="policy", input="go").output]
    talked += client.responses.create(
        model="policy", input=[{"role": "user", "content": ""}]
    ).output
    client.responses.create(model="policy", input=talked)
    assert [message.content for message in spoken.asked[-1].messages] == ["one", "two"]
    texts = [{"role": "assistant", "content": text} for text in ("one", "two")]
    assert [message.content for message in read(input=texts).messages] == ["one", "two"]


def test_a_request_says_all_that_it_wants() -> None:
    schema = {"type": "object"}
    asked = read(
        tools=[{**LOOK, "strict": True, "description": "Look."}],
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=False,
        max_output_tokens=9,
        temperature=0,
        top_p=0.5,
        text={"format": {"type": "json_schema", "name": "it", "schema": schema, "strict": True}},
        stream=True,
        store=False,
        metadata={"a": "b"},
        truncation="auto",
    )
    assert (asked.model, asked.stream) == ("policy", True)
    assert asked.sampling == {"max_tokens": 9, "temperature": 0, "top_p": 0.5}
    function = {"name": "look", "description": "Look.", "parameters": LOOK["parameters"]}
    assert asked.tools == [{"type": "function", "function": {**function, "strict": True}}]
    assert asked.options == {
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "it", "schema": schema, "strict": True},
        },
    }


def test_instructions_and_leading_developer_messages_are_one_system_message() -> None:
    developer = [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]
    late = {"role": "developer", "content": "late"}
    user = {"role": "user", "content": "hi"}
    asked = read(instructions="a", input=[{"role": "developer", "content": developer}, user, late])
    assert asked.messages == [
        Message("system", "a\n\nb\nc"),
        Message("user", "hi"),
        Message("system", "late"),
    ]


@pytest.mark.parametrize("later", [None, "A new rule."])
def test_a_previous_response_is_continued_without_its_instructions(later: str | None) -> None:
    call = Message("assistant", "", "Hm.", [ToolCall("c1", "look", "{}")])
    spoken, client = talk(call, DONE)
    first = client.responses.create(
        model="policy",
        instructions="Be brief.",
        input=[{"role": "system", "content": "Rule."}, {"role": "user", "content": "go"}],
    )
    client.responses.create(
        model="policy",
        instructions=later,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": "c1", "output": "seen"}],
    )
    assert spoken.asked[-1].messages == [
        Message("system", f"{later}\n\nRule." if later else "Rule."),
        Message("user", "go"),
        call,
        Message("tool", "seen", tool_call_id="c1", name="look"),
    ]


def test_items_can_be_referred_to() -> None:
    message = Message("assistant", "I look.", "Hm.", [ToolCall("c1", "edit", '{"input": "x"}')])
    spoken, client = talk(message, DONE)
    tools = [{"type": "custom", "name": "edit"}]
    response = client.responses.create(model="policy", input="go", tools=tools)
    references = [{"type": "item_reference", "id": item.id} for item in response.output]
    client.responses.create(model="policy", input=references, tools=tools)
    assert spoken.asked[-1].messages == [message]


@pytest.mark.parametrize("arguments", ['{"input": "*** Begin\\n"}', "{}", "no JSON"])
def test_a_custom_tool_takes_text(arguments: str) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: TEXT"}
    tools: list[Any] = [
        {"type": "custom", "name": "edit", "description": "Edit.", "format": form},
        {"type": "namespace", "name": "agents", "description": "", "tools": [LOOK]},
    ]
    calls = [ToolCall("c1", "edit", arguments), ToolCall("c2", "agents__look", "{}")]
    spoken, client = talk(Message("assistant", tool_calls=calls), DONE)
    with client.responses.stream(model="policy", input="go", tools=tools) as events:
        edit, look = events.get_final_response().output
    if edit.type == "custom_tool_call":
        assert edit.input == "*** Begin\n"
    else:  # it was not called as it can be: the agent's to refuse
        assert edit.arguments == arguments != '{"input": "*** Begin\\n"}'
    assert (look.namespace, look.name) == ("agents", "look")
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    client.responses.create(model="policy", input=[edit, look, output], tools=tools)

    asked = spoken.asked[-1]
    assert [tool["function"]["name"] for tool in asked.tools] == ["edit", "agents__look"]
    parameter = asked.tools[0]["function"]["parameters"]["properties"]["input"]
    assert "start: TEXT" in parameter["description"]
    assert asked.messages[0].tool_calls == calls
    assert asked.messages[1].name == "edit"


def test_a_stream_has_its_events_in_order() -> None:
    message = Message("assistant", "I look.", "Hm.", [ToolCall("c1", "look", "{}")])
    _, client = talk(Reply(message, "stop", 7, 3))
    events = list(client.responses.create(model="policy", input="go", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    usage = events[-1].response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 3, 10)


def test_an_answer_cut_short_is_incomplete() -> None:
    _, client = talk(*[Reply(Message("assistant", "and so"), "length")] * 2)
    response = client.responses.create(model="policy", input="go", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.output[0].status == "incomplete"
    *_, last = client.responses.create(model="policy", input="go", stream=True)
    assert last.type == "response.incomplete"


FULL: dict[str, Any] = {
    "model": "policy",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "SG0u",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "edit", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ],
    "tools": [
        LOOK,
        {"type": "custom", "name": "edit", "format": {"type": "grammar", "definition": "x"}},
        {"type": "namespace", "name": "agents", "tools": [LOOK]},
    ],
    "tool_choice": {"type": "function", "name": "look"},
    "text": {"format": {"type": "json_schema", "name": "it", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
}


def test_whatever_is_sent_is_answered_or_refused() -> None:
    for body in spoilt(FULL):
        survives(Responses(), body)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"colour": "red"}, "colour", "unknown_parameter"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"input": 3}, "input", "invalid_value"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["hi"]}, "input[0]", None),
        ({"input": [{"type": "mcp_call"}]}, "input[0]", None),
        ({"input": [{"role": "robot", "content": ""}]}, "input[0].role", None),
        ({"input": [{"role": "user"}]}, "input[0].content", None),
        ({"input": [{"type": "function_call", "name": "a"}]}, "input[0].arguments", None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None, None),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id", None),
        ({"input": [{"type": "reasoning", "encrypted_content": "?"}]}, None, None),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", None),
        ({"tools": [{"type": "function", "name": "a", "parameters": 1}]}, None, None),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", None),
        ({"text": {"format": {"type": "xml"}}}, "text.format", None),
        ({"background": True}, "background", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
    ],
)
def test_a_wrong_request_is_refused_by_its_field(
    body: dict[str, Any], param: str | None, code: str | None
) -> None:
    spoken, client = talk(DONE)
    with pytest.raises(openai.APIStatusError) as caught:
        client.post(
            "/responses", body={"model": "policy", "input": "hi", **body}, cast_to=dict[str, Any]
        )
    error = caught.value
    assert error.status_code in (400, 404)
    assert error.type == "invalid_request_error"
    assert (error.param, error.code) == (param or error.param, code)
    assert error.param
    assert spoken.replies == [DONE]


def test_a_full_context_is_an_error_that_clients_know() -> None:
    refusal = Refusal("no room", code="context_length_exceeded", param="input")
    _, client = talk(refusal)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="policy", input="hi")
    assert caught.value.code == "context_length_exceeded"


def test_a_stream_that_has_begun_can_fail() -> None:
    class Failing(Responses):
        def events(self, asked: ModelRequest, answered: Answered) -> Any:
            return self.failure(asked, Refusal("no room", code="context_length_exceeded"))

    spoken = Spoken(Failing(), [DONE])
    client = spoken.client(openai.OpenAI, openai.DefaultHttpxClient)
    with pytest.raises(openai.APIError) as caught:
        list(client.responses.create(model="policy", input="hi", stream=True))
    assert caught.value.code == "context_length_exceeded"
    asked = spoken.asked[0]
    assert b'"status":"failed"' in b"".join(spoken.dialect.events(asked, Answered([DONE], "")))
