"""What providers send as messages, and refuse in requests, by their published formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
Refusal = tuple[int, Any]  # a status, and a body
THOUGHT = "I should add."


def call_of(arguments: str, id: Any, **more: Any) -> Body:
    """Return a call of ``calculate``."""
    function = {"name": "calculate", "arguments": arguments}
    return {"id": id, "type": "function", "function": function, **more}


def error_of(message: str, **more: Any) -> Body:
    """Return an error as OpenAI words it."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, **more}}


def takes_all(body: Body) -> Refusal | None:
    """Refuse nothing."""
    return None


@dataclass(frozen=True)
class Provider:
    """One provider.

    Attributes:
        said: Returns the message of an answer, from its text, the arguments of its call if it has
            one, and the number of the request.
        called: The ``finish_reason`` of an answer with a call.
        ended: That of any other.
        cut: Those of answers that were cut.
        filtered: Those of answers that a filter has stopped.
        thinks: Whether its answers have reasoning.
        whole: Further fields of an answer.
        choice: Further fields of its choice.
        refuses: Returns what it refuses about a request, which may have fields or messages that it
            does not know, or lack some that it wants back.
        full: What it answers where the context is full, in all its wordings.
        fails: What it answers with where it has failed, and may succeed when it is asked again.
    """

    said: Callable[[str, str | None, int], Body]
    full: tuple[Refusal, ...]
    fails: tuple[Refusal, ...]
    called: str = "tool_calls"
    ended: str = "stop"
    cut: tuple[str, ...] = ("length",)
    filtered: tuple[str, ...] = ("content_filter",)
    thinks: bool = True
    whole: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    refuses: Callable[[Body], Refusal | None] = takes_all

    def answer(
        self, text: str, arguments: str | None = None, number: int = 0, reason: str = ""
    ) -> Body:
        """Return the body of an answer."""
        ended = self.ended if arguments is None else self.called
        choice = {
            "index": 0,
            "message": self.said(text, arguments, number),
            "finish_reason": reason or ended,
            **self.choice,
        }
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1764000000,
            "model": "m",
            "choices": [choice],
            "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
            **self.whole,
        }

    def broken_off(self, reason: str, **choice: Any) -> Refusal:
        """Return an answer that has failed under way, and says so by its ``finish_reason``."""
        body = self.answer("I sta", reason=reason)
        body["choices"][0] |= choice
        return 200, body


def _plain(text: str, arguments: str | None, number: int, **more: Any) -> Body:
    """Return a message with an id like OpenAI's."""
    message: Body = {"role": "assistant", "content": text or None, **more}
    if arguments is not None:
        message["tool_calls"] = [call_of(arguments, f"call_{number:024d}")]
    return message


def openai(text: str, arguments: str | None, number: int) -> Body:
    return _plain(text, arguments, number, refusal=None, annotations=[])


def _unknown_in_messages(body: Body, *known: str) -> str | None:
    known = ("role", "content", "tool_calls", "tool_call_id", "name", *known)
    unknown = (name for message in body["messages"] for name in message if name not in known)
    return next(unknown, None)


def openai_refuses(body: Body) -> Refusal | None:
    """A reasoning model of OpenAI's."""
    if "max_tokens" in body:
        text = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead."
        )
        return 400, error_of(text, param="max_tokens", code="unsupported_parameter")
    if "top_p" in body:
        text = "Unsupported parameter: 'top_p' is not supported with this model."
        return 400, error_of(text, param="top_p", code="unsupported_parameter")
    if body.get("temperature", 1) != 1:
        text = (
            "Unsupported value: 'temperature' does not support 0.5 with this model. Only the "
            "default (1) value is supported."
        )
        return 400, error_of(text, param="temperature", code="unsupported_value")
    if name := _unknown_in_messages(body, "refusal", "audio"):
        text = f"Additional properties are not allowed ('{name}' was unexpected) - 'messages.2'"
        return 400, error_of(text)
    if any(message.get("tool_calls") == [] for message in body["messages"]):
        return 400, error_of("[] is too short - 'messages.2.tool_calls'")
    return None


def openrouter(text: str, arguments: str | None, number: int) -> Body:
    details = [{"type": "reasoning.text", "text": THOUGHT, "signature": "s", "index": 0}]
    message = _plain(text, arguments, number, refusal=None, reasoning=THOUGHT)
    for call in message.get("tool_calls", ()):
        call["index"] = 0
    return message | {"reasoning_details": details}


def gemini(text: str, arguments: str | None, number: int) -> Body:
    message: Body = {"role": "assistant"} | ({"content": text} if text else {})
    if arguments is not None:
        signature = {"google": {"thought_signature": f"signature-{number}"}}
        call = call_of(arguments, "", extra_content=signature)
        message["tool_calls"] = [call]
    return message


def gemini_refuses(body: Body) -> Refusal | None:
    def error(text: str) -> Refusal:
        return 400, [{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}]

    if "seed" in body:
        return error('Invalid JSON payload received. Unknown name "seed": Cannot find field.')
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            if "extra_content" not in call:
                return error(
                    "Function call is missing a thought_signature in functionCall parts. This is "
                    "required for tools to work correctly."
                )
        if message["role"] == "tool" and not message.get("tool_call_id"):
            return error("tool_call_id must not be empty.")
    return None


def anthropic(text: str, arguments: str | None, number: int) -> Body:
    message = _plain(text, None, number)
    if arguments is not None:
        message["tool_calls"] = [call_of(arguments, f"toolu_{number:024d}")]
    return message


def anthropic_refuses(body: Body) -> Refusal | None:
    if "temperature" in body and "top_p" in body:
        text = "`temperature` and `top_p` cannot both be specified for this model. Use only one."
        return 400, error_of(text, code="invalid_request_error")
    return None


def groq(text: str, arguments: str | None, number: int) -> Body:
    message = _plain(text, None, number, reasoning=THOUGHT)
    if arguments is not None:
        message["tool_calls"] = [call_of(arguments, f"fc_{number:08d}")]
    return message


def groq_refuses(body: Body) -> Refusal | None:
    if name := _unknown_in_messages(body, "reasoning"):
        text = (
            "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : "
            f"property '{name}' is unsupported)]"
        )
        return 400, error_of(text)
    return None


def mistral(text: str, arguments: str | None, number: int) -> Body:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}], "closed": True}
    parts: list[Body] = [thinking, *([{"type": "text", "text": text}] if text else [])]
    message: Body = {"role": "assistant", "content": parts, "tool_calls": None, "prefix": False}
    if arguments is not None:
        call = call_of(arguments, f"T{number:08d}", index=0)
        message["tool_calls"] = [call]
    return message


def mistral_refuses(body: Body) -> Refusal | None:
    if "seed" in body:
        found = {"type": "extra_forbidden", "loc": ["body", "seed"], "input": 1}
        return 422, {"detail": [found | {"msg": "Extra inputs are not permitted"}]}
    if name := _unknown_in_messages(body, "prefix"):
        found = {"type": "extra_forbidden", "loc": ["body", "messages", 2, "assistant", name]}
        return 422, {"detail": [found | {"msg": "Extra inputs are not permitted"}]}
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            if len(call["id"]) != 9 or not call["id"].isalnum():
                text = (
                    f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9."
                )
                return 400, {"object": "error", "message": text, "code": 3280}
    return None


def deepseek(text: str, arguments: str | None, number: int) -> Body:
    return _plain(text, arguments, number, reasoning_content=THOUGHT)


def deepseek_refuses(body: Body) -> Refusal | None:
    for message in body["messages"]:
        if message.get("tool_calls") and not message.get("reasoning_content"):
            text = "Missing `reasoning_content` field in the assistant message."
            return 400, error_of(text, code="invalid_request_error")
    return None


def vllm(text: str, arguments: str | None, number: int) -> Body:
    message = _plain(text, None, number, refusal=None, annotations=None, audio=None)
    message |= {"function_call": None, "tool_calls": [], "reasoning": THOUGHT}
    if arguments is not None:
        message["tool_calls"] = [call_of(arguments, f"chatcmpl-tool-{number:032d}")]
    return message


def sglang(text: str, arguments: str | None, number: int) -> Body:
    message = _plain(text, None, number, reasoning_content=THOUGHT, tool_calls=None)
    if arguments is not None:
        message["tool_calls"] = [call_of(arguments, None, index=0)]
    return message


def llama_cpp(text: str, arguments: str | None, number: int) -> Body:
    message = _plain(text, None, number, reasoning_content=THOUGHT)
    if arguments is not None:
        call = call_of(arguments, "")
        message["tool_calls"] = [call]
    return message | {"content": text}


def ollama(text: str, arguments: str | None, number: int) -> Body:
    message: Body = {"role": "assistant", "content": text, "reasoning": THOUGHT}
    if arguments is not None:
        message["tool_calls"] = [call_of(arguments, "call_0", index=0)]
    return message


def ids_differ(body: Body) -> Refusal | None:
    """Refuse a conversation in which calls share an id, or have none."""
    ids = [call["id"] for each in body["messages"] for call in each.get("tool_calls", ())]
    if len({*ids}) < len(ids) or not all(isinstance(id, str) and id for id in ids):
        return 400, error_of(f"the ids of calls must differ, got {ids}")
    return None
