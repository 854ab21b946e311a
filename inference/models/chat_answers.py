"""The answers of chat APIs: one reader for all providers, and what their failures mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pydantic_core

from vf.inference.model import Conversation, Reply
from vf.inference.wire import TIMEOUTS, Garbled, Unavailable, refusal, words_of
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.messages import Message
from vf.traces.trace import FinishReason

# Why providers say that an answer ended. Case is ignored, and so is what follows a colon.
FINISH: dict[str, FinishReason] = {
    # OpenAI, Anthropic, Gemini, Hugging Face's TGI, Together, Cohere
    **dict.fromkeys(("stop", "tool_calls", "function_call", "tool_call", "complete"), "stop"),
    **dict.fromkeys(("end_turn", "tool_use", "stop_sequence", "eos", "eos_token"), "stop"),
    **dict.fromkeys(("completed", "finished", "done", "end", "stop_token"), "stop"),
    "function_call_filter": "stop",  # Gemini, Bedrock: the call that the model wrote cannot be read
    **dict.fromkeys(("malformed_function_call", "malformed_tool_use"), "stop"),
    **dict.fromkeys(("unexpected_tool_call", "too_many_tool_calls"), "stop"),
    # Mistral, Anthropic, Zhipu, MiniMax; vLLM stops what only repeats itself
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output"), "length"),
    **dict.fromkeys(("max_output_tokens", "max_length", "max_new_tokens", "incomplete"), "length"),
    **dict.fromkeys(("context_length_exceeded", "context_window_exceeded"), "length"),
    **dict.fromkeys(("model_context_window_exceeded", "error_limit", "repetition"), "length"),
    # OpenAI and Azure, Gemini, Zhipu, Cohere, Bedrock
    **dict.fromkeys(("content_filter", "content_filtered", "safety"), "content_filter"),
    **dict.fromkeys(("recitation", "blocklist", "prohibited_content", "spii"), "content_filter"),
    **dict.fromkeys(("sensitive", "error_toxic", "guardrail_intervened"), "content_filter"),
    **dict.fromkeys(("language", "model_armor", "image_safety", "no_image"), "content_filter"),
    **dict.fromkeys(("image_prohibited_content", "image_recitation"), "content_filter"),
    "refusal": "refusal",
}
# The server was interrupted: OpenRouter, Mistral, Zhipu, DeepSeek, vLLM, SGLang, Ollama, Cohere,
# Gemini, which gives no cause.
FAILED = frozenset(
    {
        *("error", "network_error", "abort", "aborted", "insufficient_system_resource"),
        *("cancelled", "canceled", "user_cancel", "timeout", "failed", "unload"),
        *("server_error", "internal_error", "internal_server_error", "model_error", "unknown"),
        *("load", "preempted", "overloaded", "other", "image_other", "unspecified"),
    }
)
# How providers say that a prompt, or a prompt and max_tokens, are more than the context holds.
# They do not agree on a status or a code. The name of a limit alone does not say so: an API that
# does not know the field max_context_length names it, too.
TOO_LONG_STATUSES = (400, 413, 422)
_LIMIT = (
    r"(?:context[ _-](?:length|size|window|limit)|maximum context|sequence length|"
    r"max(?:imum)?[ _](?:model|prompt|input|sequence)[ _]length)"
)
_EXCEEDED = (
    r"(?:exceed|too (?:long|large|many)|(?:longer|larger|greater|more) than|overflow|"
    r"(?:is|of|length:?) (?:only )?\d)"
)
_ASKED = r"\b(?:prompt|inputs?|request|messages?|conversation|context|tokens?)\b(?![\"'])"
TOO_LONG = re.compile(
    rf"{_LIMIT}[^{{}}]{{0,120}}?{_EXCEEDED}|{_EXCEEDED}[^{{}}]{{0,120}}?{_LIMIT}|"
    rf"{_ASKED}[^{{}}]{{0,60}}?exceed(s|ed)? (the |model |the model's )?(configured |token )?limit|"
    rf"{_ASKED}[^{{}}]{{0,60}}?maximum allowed length|would exceed the model's limit|"
    r"`inputs` (tokens|must have less)|prompt exceeds max length|max_new_tokens` must be <=|"
    r"(prompt|input|conversation|message \w+( \w+)?)( is)? too (long|large)|"
    r"(prompt|input|inputs) \(?(token count|length)\b.* (exceeds|should not exceed|only supports)|"
    r"prompt token count .*exceeds|input tokens? .{0,20}cannot exceed|exceeded max input tokens|"
    r"range of input length|exceed\w* model token limit|too many (input |prompt )?tokens|"
    r"prompt contains \d+ tokens|reduce the length of the (messages|prompt|input)|"
    r"content[^:]{0,20}: string too long|expected maxLength:? \d{5}|max size: \d+ tokens|"
    r"max_tokens must be at least 1, got -|request_too_large|tokens_limit_reached|"
    r"context_(length|window)_exceeded|prompt_tokens_exceeded|exceed_context_size",
    re.IGNORECASE,
)
# What a 413 speaks of where the context is full. A proxy's speaks of a request's bytes.
CONTEXT = re.compile(r"token|context|prompt|\bmodel\b|request_too_large", re.IGNORECASE)
# A request that is larger than a minute's quota (Groq's 413) is not longer than the context.
QUOTA = re.compile(r"per (minute|day|hour)|rate[ _-]limit|\bTPM\b|quota", re.IGNORECASE)


# How providers refuse what they will not have a model read: Azure, OpenAI, OpenRouter, DeepSeek,
# Alibaba, xAI, Anthropic. The policy may have said it, so it is an answer, and no failure.
FILTER_STATUSES = (400, 403)
FILTERED = re.compile(
    r"\bcontent_filter\b|content management policy|content_policy_violation|input was flagged|"
    r"flagged as potentially violating|content exists risk|data_inspection_failed|"
    r"ResponsibleAIPolicyViolation|content violates usage guidelines|content filtering|"
    r"flagged by .*moderation|(input|prompt)_moderation|prohibited_content|"
    r"(input|output) data may contain inappropriate",
    re.IGNORECASE,
)


class Refused(ModelError):
    """The API refused the request, and would refuse it again.

    Attributes:
        status: Of its answer.
        words: The text of its answer.
    """

    def __init__(self, message: str, status: int, words: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.words = words


class TooLong(Refused):
    """What was asked for is more than the context holds."""


class Filtered(Refused):
    """The provider's content filter keeps the conversation from the model."""


# MiniMax's codes of errors, in answers with status 200, and what they mean: a status, or an error.
MINIMAX: dict[int, int | type[Refused]] = {
    **dict.fromkeys((1000, 1001, 1013, 1024, 1033), 500),  # unknown, timeout, internal, system
    **dict.fromkeys((1002, 1041), 429),
    **dict.fromkeys((1004, 2049), 401),
    1008: 402,  # balance
    2013: 400,
    **dict.fromkeys((1026, 1027), Filtered),
    1039: TooLong,
}


def failure(problem: str, status: int, body: object, after: float | None = None) -> ModelError:
    """Return the error of an answer that is a refusal.

    Args:
        problem: The error's text.
        status: The answer's, or the one that its text has in place of it.
        body: The answer.
        after: Seconds after which the server wants to be asked again.
    """
    text = str(body).replace('\\"', '"')  # quotes in JSON
    full = TOO_LONG.search(text) or (status == 413 and CONTEXT.search(text))
    if status in TOO_LONG_STATUSES and full:
        return (Refused if QUOTA.search(text) else TooLong)(problem, status, text)
    if status in FILTER_STATUSES and FILTERED.search(text):
        return Filtered(problem, status, text)
    if "insufficient_quota" in text:  # a 429 that does not pass
        return Refused(problem, status, text)
    error = refusal(problem, status, after)
    return error if isinstance(error, Unavailable) else Refused(problem, status, text)


def read_object(text: str | bytes, who: str) -> dict[str, Any]:
    """Return the JSON object that an API answered with status 200.

    Raises:
        Garbled: If it is not a JSON object.
    """
    if isinstance(text, str):
        text = text.removeprefix("\ufeff")
    try:
        answer = pydantic_core.from_json(text)
    except ValueError as error:
        answer = None
        reason = f": {error}"
    else:
        reason = ""
    if isinstance(answer, list) and len(answer) == 1:  # Google's API sends errors in a list
        [answer] = answer
    if not isinstance(answer, dict):
        raise Garbled(
            f"{who}: the server did not answer with a chat completion{reason}. It answered: "
            f"{words_of(text)}"
        )
    return answer


def read_reply(answer: Mapping[str, Any], who: str, conversation: Conversation) -> Reply:
    """Return what a chat completion says.

    Args:
        answer: The body of an answer with status 200.
        who: The name of the model that answered, for the errors.
        conversation: The conversation that it answers.

    Raises:
        Unavailable: If it holds an error in place of an answer, and may be tried again.
        TooLong: If it says that the context is full.
        ModelError: If it holds what cannot be read.
    """
    _check_error(answer, who)
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping):
        raise Garbled(f"{who}: the answer has no choices: {words_of(answer)}")
    _check_error(choice, who)
    reason, raw = _reason(choice.get("finish_reason"), who), choice.get("message")
    if raw is None and reason == "content_filter":
        raw = {}
    if not isinstance(raw, Mapping):
        raise Garbled(f"{who}: the answer has no message: {words_of(answer)}")
    message = _message(raw, who, conversation)
    usage = answer.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    tokens = _count(usage.get("completion_tokens"))
    if raw.get("refusal") and not raw.get("content"):
        reason = "refusal"
    if not message.content and not message.tool_calls:
        if reason is None:
            raise Garbled(f"{who}: the answer is empty and has no finish_reason")
        if reason == "stop" and raw.get("content") is None and not (tokens or message.reasoning):
            raise Garbled(f"{who}: the answer holds neither text nor calls: {words_of(answer)}")
    if reason is None:
        reason = "stop"
    return Reply(message, reason, _count(usage.get("prompt_tokens")), tokens)


def _check_error(answer: Mapping[str, Any], who: str) -> None:
    """Raise what an error means that is in an answer with status 200."""
    error = answer.get("error")
    base = answer.get("base_resp")
    if isinstance(base, Mapping) and base.get("status_code") in MINIMAX:
        problem, status = f"{who}: the answer is an error: {words_of(base)}", base["status_code"]
        meaning = MINIMAX[status]
        if isinstance(meaning, int):
            raise failure(problem, meaning, base)
        raise meaning(problem, 400, str(base))
    if not error and answer.get("object") != "error":
        return
    problem = f"{who}: the answer is an error: {words_of(answer)}"
    code = str((error if isinstance(error, Mapping) else answer).get("code"))
    status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 0
    if status == 0 or status in TIMEOUTS:
        if TOO_LONG.search(str(answer)) and not QUOTA.search(str(answer)):
            raise TooLong(problem, 400)
        raise Unavailable(problem, away=False, answered=True)
    raise failure(problem, status, answer)


def _reason(given: object, who: str) -> FinishReason | None:
    """Return why an answer ended; None where it does not say.

    Raises:
        Unavailable: If the server was interrupted.
        ModelError: If the reason is unknown.
    """
    name = "" if given is None else str(given).partition(":")[0].strip().lower()
    name = re.sub(r"^finish_?reason[._]", "", name)  # how an enumeration prints itself
    if name in ("", "null", "none"):
        return None
    if name in FINISH:
        return FINISH[name]
    problem = f"{who}: the answer ended with finish_reason {str(given)[:100]!r}"
    if name in FAILED:
        raise Unavailable(f"{problem}: the server was interrupted", away=False, answered=True)
    raise ModelError(f"{problem}, which is not known: it may have failed or be cut off")


def _message(answer: Mapping[str, Any], who: str, conversation: Conversation) -> Message:
    """Return a message, with ids of its calls that no other call of the conversation has."""
    raw = {**answer, "role": "assistant"}
    if isinstance(calls := raw.get("tool_calls"), Mapping):
        calls = [calls]
    if not calls and (only := raw.pop("function_call", None)):
        calls = [{"type": "function", "function": only}]
    if isinstance(calls, list):
        raw["tool_calls"] = [_as_call(call) for call in calls if call]
    if isinstance(content := raw.get("content"), list | dict):
        parts = content if isinstance(content, list) else [content]
        raw["content"] = [_as_part(part) for part in parts if part]
    try:
        message = Message.from_openai(raw)
    except ConfigError as error:  # one answer is at fault, and no setting
        raise Garbled(f"{who}: the answer cannot be read: {error}") from error
    if answer.get("refusal") and not message.content:
        message.content = str(answer["refusal"])
    if message.tool_calls:
        taken = {call.id for earlier in conversation.messages for call in earlier.tool_calls}
        fresh = _ids(conversation.turn)
        calls = []
        for call, given in zip(message.tool_calls, raw["tool_calls"], strict=True):
            if not call.id or call.id in taken:
                call.id = next(id for id in fresh if id not in taken)
            taken.add(call.id)
            function = given["function"]
            if not function.get("arguments"):
                function = {**function, "arguments": "{}"}
            calls.append({**given, "id": call.id, "function": function})
        raw["tool_calls"] = calls
    message.raw = raw
    return message


def _as_call(call: Any) -> Any:
    """Return a call in OpenAI's form, if it has another: without a function, or without a name."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function", call if "name" in call else None)
    if not isinstance(function, Mapping) or ("name" in function and function is not call):
        return call
    named = {"name": function.get("name", ""), "arguments": function.get("arguments")}
    rest = {name: value for name, value in call.items() if name not in ("name", "arguments")}
    return {"type": "function", **rest, "function": named}


def _as_part(part: Any) -> Any:
    """Return a part of a message as a part, and its text as a text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and part.get("type") == "text" and part.get("text") is None:
        return {**part, "text": ""}
    return part


def _ids(turn: int) -> Iterator[str]:
    """Yield ids for calls: nine letters and digits, as Mistral's API has them."""
    number = turn * 1000
    while True:
        yield f"c{number:08d}"
        number += 1


def _count(tokens: object) -> int:
    # Some servers send null, and some 20.0.
    return int(tokens) if isinstance(tokens, int | float) and 0 < tokens < 2**53 else 0


# Fields of a message that hold reasoning, and the kinds of parts that do.
REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
_PARTS = ("thinking", "redacted_thinking", "reasoning")


def as_sent(
    message: Message, *, reasoning: bool = True, valid_calls: bool = False
) -> dict[str, Any]:
    """Return a message as an API gets it: what came from it, as it came.

    Args:
        message: Any message of the conversation.
        reasoning: Whether reasoning goes along.
        valid_calls: Whether arguments that are not a JSON object are wrapped in one, for an API
            that refuses what its own model wrote.
    """
    out, raw = message.to_openai(), message.raw
    if raw is not None and _unchanged(message, raw):
        out = {name: value for name, value in raw.items() if value not in (None, [])}
        out.setdefault("content", None if message.tool_calls else message.content)
    elif raw is not None and message.reasoning is not None:  # by the name that the API has for it
        name = next((name for name in REASONING if isinstance(raw.get(name), str)), None)
        thoughts = out.pop("reasoning_content")
        out |= {} if name is None else {name: thoughts}
    if not reasoning:
        out = {name: value for name, value in out.items() if name not in REASONING}
        if isinstance(out["content"], list):
            kept = [p for p in out["content"] if p.get("type") not in _PARTS]
            out["content"] = kept or message.content
    if valid_calls and not valid(message):
        sent = zip(out["tool_calls"], message.tool_calls, strict=True)
        out["tool_calls"] = [
            {**raw, "function": {**raw["function"], "arguments": _as_object(call.arguments)}}
            for raw, call in sent
        ]
    return out


def valid(message: Message) -> bool:
    """Return whether the arguments of all calls are JSON objects."""
    return all(call.arguments == _as_object(call.arguments) for call in message.tool_calls)


def _as_object(arguments: str) -> str:
    with suppress(ValueError):
        if isinstance(pydantic_core.from_json(arguments), dict):
            return arguments
    return pydantic_core.to_json({"malformed": arguments}).decode()


def _unchanged(message: Message, raw: Mapping[str, Any]) -> bool:
    """Return whether a message still says what an API sent."""
    read = Message.from_openai(raw)
    if raw.get("refusal") and not read.content:
        read = replace(read, content=str(raw["refusal"]))
    return read == message
