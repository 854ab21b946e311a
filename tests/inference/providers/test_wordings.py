"""Words of providers that none of the recorded shapes has."""

from __future__ import annotations

import json
from typing import Any

import pytest

import vf
from tests.inference.providers.shapes import Body, Refusal
from tests.inference.providers.table import PROVIDERS
from tests.inference.providers.test_readers import chat, respond
from vf.inference.model import ContextFull, Conversation
from vf.inference.models.chat_answers import (
    Refused,
    TooLong,
    as_sent,
    failure,
    read_object,
    read_reply,
)
from vf.inference.wire import Unavailable
from vf.runtime.errors import ModelError

FULL = [
    # OpenAI, Azure
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 "
    "tokens. Please reduce the length of the messages.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000.",
    "Invalid 'messages[0].content': string too long. Expected a string with maximum length "
    "10485760, but got a string with length 12000000 instead.",
    "context_length_exceeded",
    # Anthropic
    "prompt is too long: 200001 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 199999 + 512 > 200000, decrease input "
    "length or `max_tokens` and try again",
    # Gemini, Vertex
    "The input token count (1048580) exceeds the maximum number of tokens allowed (1048576).",
    "Unable to submit request because the input token count is 33000 but model only supports up "
    "to 32768. Reduce the input token count and try again.",
    # Bedrock
    "Input is too long for requested model.",
    "Expected maxLength: 1048576, but got string with length 2000000",
    "Conversation too long",
    # Mistral, Cohere, AI21, xAI
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
    "context length",
    "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs.",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
    "Prompt too long",
    "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    # Together, Fireworks, DeepInfra, Cerebras, SambaNova, Cloudflare
    "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens",
    "The prompt is too long: 40000, model maximum context length: 32767",
    "Requested input length 9000 exceeds maximum input length 8192",
    "Please reduce the length of the messages or completion. Current length is 9000 while limit "
    "is 8192",
    "Requested tokens exceeded context window",
    "The estimated number of input and maximum output tokens (9000) exceeded this model context "
    "window limit (8192).",
    # Alibaba, Zhipu, Moonshot, MiniMax
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "Prompt exceeds max length",
    "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
    "invalid params, context window exceeds limit (2013)",
    # GitHub, Copilot, watsonx, Databricks
    "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "prompt token count of 135218 exceeds the limit of 128000",
    "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
    "Exceeded max input tokens",
    # vLLM, SGLang, TGI, TensorRT-LLM
    "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context "
    "length is 4096 tokens and your request has 100 input tokens (5000 > 4096 - 100).",
    "max_tokens must be at least 1, got -5",
    "The decoder prompt (length 100) is longer than the maximum model length of 99.",
    "The input (120 tokens) is longer than the model's context length (100 tokens).",
    "`inputs` must have less than 4095 tokens. Given: 5000",
    "Prompt length (9000) exceeds maximum input length (8192).",
    "The sum of prompt length (9000), query length (0) should not exceed max_num_tokens (8192)",
    # llama.cpp, LM Studio, Ollama
    "the request exceeds the available context size (8192 tokens), try increasing it",
    "Trying to keep the first 9000 tokens when context the overflows. However, the model is "
    "loaded with context length of only 4096 tokens, which is not enough.",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "the input length exceeds the context length",
    # others
    "The total number of tokens in the prompt is 9000 which exceeds the limit of 8192",
    "This request would exceed the model's limit of 131072 tokens",
    "sequence length 9000 is larger than the model's 8192",
    "Token indices sequence length is longer than the maximum sequence length for this model",
]
# Words of other refusals, some of which name the context.
NOT_FULL = [
    # fields that an API does not know, or wants to be of another kind
    "unsupported parameter: max_context_length",
    "Unsupported parameter: 'max_prompt_length' is not supported with this model.",
    "Unrecognized request argument supplied: context_length",
    'Invalid JSON payload received. Unknown name "context_size": Cannot find field.',
    "'messages.2' : property 'context_window' is unsupported",
    "Extra inputs are not permitted: body -> max_model_length",
    "Additional properties are not allowed ('context_limit' was unexpected)",
    "The parameter context_length must be a positive integer",
    "max_input_length: Input should be a valid integer",
    "Parameter num_ctx (context window) is not allowed for this model",
    "Invalid schema for function 'context_window': 'sizes' is not one of the allowed types",
    # max_tokens alone, which is a setting
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas "
    "you provided 100000.",
    "max_tokens: 9999999 > 64000, which is the maximum allowed number of output tokens",
    "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less "
    "than the `context_window` for this model",
    "Range of max_tokens should be [1, 8192]",
    "max_tokens exceeds the limit: 8192",
    # what is too long, and is no conversation
    "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum "
    "length 40, but got a string with length 200 instead. (string_above_max_length)",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array "
    "with length 200 instead.",
    "Invalid 'tools[0].function.description': string too long. Expected a string with maximum "
    "length 1024, but got a string with length 2000 instead.",
    "#/tools/0/name: expected maxLength: 64, actual: 200",
    "description: exceeds maximum allowed length of 1024",
    "Number of stop sequences exceeds the limit of 4",
    "image exceeds 5 MB maximum: 7000000 bytes > 5242880 bytes",
    # quotas
    "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000",
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
    "You exceeded your current quota: input token count exceeds the limit",
    # other mistakes
    "The model `llama-8b-context-length-32k` does not exist",
    "model 'long-context-window' was not found",
    "temperature must be at most 2",
    "messages: at least one message is required",
    "Expecting value: line 1 column 1 (char 0)",
]


@pytest.mark.parametrize("text", FULL)
def test_words_for_a_full_context_are_read(text: str) -> None:
    refusals: list[Refusal] = [(400, {"error": {"message": text}})] * 9
    with pytest.raises(ContextFull):
        respond(chat, *refusals)
    assert isinstance(failure("", 400, text), TooLong)


@pytest.mark.parametrize("text", NOT_FULL)
def test_other_refusals_are_no_full_context(text: str) -> None:
    for body in ({"error": {"message": text, "type": "invalid_request_error"}}, text):
        assert type(failure("", 400, body)) is Refused
        assert type(failure("", 400, json.dumps(body))) is Refused
    with pytest.raises(ModelError) as caught:
        respond(chat, (400, {"error": {"message": text}}))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("<html><h1>413 Request Entity Too Large</h1><hr>nginx/1.25.3</html>", Refused),
        ("", Refused),
        ({"error": {"type": "request_too_large", "message": "Request exceeds the size"}}, TooLong),
        ({"error": "Request too large for model `m`"}, TooLong),
        ({"error": "Request too large: 9000 tokens"}, TooLong),
    ],
)
def test_a_413_of_a_proxy_is_no_full_context(body: Any, kind: type[Refused]) -> None:
    assert type(failure("", 413, body)) is kind


# By what they mean, the ends of answers that no provider of the table has.
ENDS: dict[str, tuple[Any, ...]] = {
    "stop": (
        *("malformed_tool_use", "UNEXPECTED_TOOL_CALL", "too_many_tool_calls", "completed", "done"),
        *("FinishReason.STOP", "FINISH_REASON_STOP", " Stop ", "null", "None", "", None),
    ),
    "length": ("max_output_tokens", "incomplete", "FINISH_REASON_MAX_TOKENS", "max_length"),
    "content_filter": ("RECITATION", "LANGUAGE", "MODEL_ARMOR", "IMAGE_SAFETY", "SPII"),
    "failed": ("OTHER", "FINISH_REASON_UNSPECIFIED", "load", "preempted", "overloaded"),
    "unknown": ("pause_turn", True, 5, [], {}, "stop it"),
}


@pytest.mark.parametrize(("kind", "reason"), [(k, each) for k in ENDS for each in ENDS[k]])
def test_the_end_of_an_answer_is_read_by_every_name_that_it_has(kind: str, reason: Any) -> None:
    answer = PROVIDERS["openai"].answer("Hello!")
    answer["choices"][0]["finish_reason"] = reason
    conversation = Conversation([vf.Message("user", "x")])
    if kind == "failed":
        with pytest.raises(Unavailable, match="was interrupted"):
            read_reply(answer, "m", conversation)
    elif kind == "unknown":
        with pytest.raises(ModelError, match="which is not known"):
            read_reply(answer, "m", conversation)
    else:
        assert read_reply(answer, "m", conversation).finish_reason == kind


ONE = [("f", "{}")]
FUNCTION = {"name": "f", "arguments": "{}"}
SHAPES: list[tuple[Body, str, list[tuple[str, str]]]] = [
    ({"content": "Hi", "tool_calls": []}, "Hi", []),
    ({"content": "Hi", "tool_calls": [None]}, "Hi", []),
    ({"content": "Hi", "tool_calls": [{}], "function_call": {}}, "Hi", []),
    ({"content": None, "function_call": FUNCTION}, "", ONE),
    ({"content": None, "tool_calls": {"id": "a", "function": FUNCTION}}, "", ONE),
    ({"content": None, "tool_calls": [{"id": "a", **FUNCTION}]}, "", ONE),
    ({"content": None, "tool_calls": [{"type": None, "function": FUNCTION}]}, "", ONE),
    ({"content": None, "tool_calls": [{"function": {"arguments": "{}"}}]}, "", [("", "{}")]),
    ({"content": None, "tool_calls": [{"function": {"name": "f"}}]}, "", ONE),
    ({"content": ["Hi", " there"]}, "Hi there", []),
    ({"content": {"type": "text", "text": "Hi"}}, "Hi", []),
    ({"content": [None, {"type": "text", "text": None}]}, "", []),
]


@pytest.mark.parametrize(("message", "content", "calls"), SHAPES)
def test_a_message_is_read_in_whatever_shape_it_has(
    message: Body, content: str, calls: list[tuple[str, str]]
) -> None:
    body = {"choices": [{"finish_reason": "stop", "message": message}]}
    text = "\ufeff" + json.dumps(body)
    reply = read_reply(read_object(text, "m"), "m", Conversation([vf.Message("user", "x")]))
    assert reply.message.content == content
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == calls
    sent = as_sent(reply.message)
    assert vf.Message.from_openai(sent) == reply.message
    assert len(sent.get("tool_calls", ())) == len(calls)


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize("message", [{}, {"content": None, "tool_calls": []}])
def test_an_answer_of_nothing_is_asked_for_again(message: Body, reason: str) -> None:
    conversation = Conversation([vf.Message("user", "x")])
    body: Body = {"choices": [{"finish_reason": reason, "message": message}]}
    with pytest.raises(Unavailable, match="neither text nor calls"):
        read_reply(body, "m", conversation)
    body["usage"] = {"completion_tokens": 1}  # the model's own doing: it ended at once
    assert read_reply(body, "m", conversation).message.content == ""


@pytest.mark.parametrize("message", [{"content": 5}, {"content": "", "tool_calls": "[]"}])
def test_a_message_that_cannot_be_read_is_asked_for_again(message: Body) -> None:
    body = {"choices": [{"finish_reason": "stop", "message": message}]}
    with pytest.raises(Unavailable, match="cannot be read"):
        read_reply(body, "m", Conversation([vf.Message("user", "x")]))


@pytest.mark.parametrize("code", [1004, 1008, 2013])
def test_an_error_by_minimaxs_code_is_final(code: int) -> None:
    body = {"choices": None, "base_resp": {"status_code": code, "status_msg": "some words"}}
    good = 200, PROVIDERS["minimax"].answer("Hello!")
    with pytest.raises(ModelError, match="some words"):
        respond(lambda url: chat(url, 1), (200, body), good)


@pytest.mark.parametrize("code", [1026, 1027])
def test_minimaxs_filter_gives_an_empty_answer(code: int) -> None:
    body = {"choices": None, "base_resp": {"status_code": code, "status_msg": "sensitive"}}
    reply, _ = respond(chat, (200, body))
    assert (reply.message.content, reply.finish_reason) == ("", "content_filter")


def test_odd_ids_of_calls_go_back_as_they_came_and_none_comes_twice() -> None:
    odd = ["x" * 200, "functions.calculate:0", "a b/ü\n{}", "-", "7"]
    conversation = Conversation([vf.Message("user", "x")])
    for _ in range(2):
        body = PROVIDERS["moonshot"].answer("", "{}")
        said = body["choices"][0]["message"]
        [call] = said["tool_calls"]
        said["tool_calls"] = [call | {"id": id} for id in odd]
        reply, _ = respond(chat, (200, body), conversation=conversation)
        conversation.messages.append(reply.message)
        conversation.messages += [
            vf.Message("tool", str(place), tool_call_id=call.id)
            for place, call in enumerate(reply.message.tool_calls)
        ]
        conversation.turn += 1
    good = 200, PROVIDERS["moonshot"].answer("Hello!")
    _, (request,) = respond(chat, good, conversation=conversation)
    called = [call["id"] for each in request["messages"] for call in each.get("tool_calls", ())]
    results = [each["tool_call_id"] for each in request["messages"] if each["role"] == "tool"]
    assert called == results
    assert called[: len(odd)] == odd
    assert len({*called}) == 2 * len(odd)
