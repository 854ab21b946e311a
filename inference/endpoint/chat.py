"""OpenAI's Chat Completions, as agents speak it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from vf.inference.endpoint.dialect import Answered, ModelRequest, Refusal
from vf.inference.endpoint.reading import EXACT, check_count, openai_error, parse, settled
from vf.inference.endpoint.stored import ReadBefore, Stored
from vf.inference.model import Reply
from vf.inference.request_limits import MOST_MESSAGES, MOST_STOPS, MOST_TOOLS
from vf.inference.settings import MOST_TOP_K, MinP, RepetitionPenalty, Temperature, TopP
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message

MOST_ANSWERS = 128  # of one request, as OpenAI has it

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
_OPTIONS = (
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "reasoning_effort",
    "verbosity",
)
# Fields of OpenAI's that leave the answer as it is.
_WITHOUT_EFFECT = {
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# Fields that ask for what is not available, unless they have one of these values.
_ONLY: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "function_call": (None,),
    "functions": (None,),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "top_logprobs": (None, 0),
    "web_search_options": (None,),
}


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


class _Request(BaseModel):
    """The fields that shape an answer; messages and tools are read by themselves."""

    model_config = EXACT

    model: str
    messages: list[Any] = Field(min_length=1, max_length=MOST_MESSAGES)
    tools: list[dict[str, Any]] | None = Field(None, max_length=MOST_TOOLS)
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = Field(None, le=2.0)
    top_p: TopP | None = None
    top_k: int | None = Field(None, ge=-1, le=MOST_TOP_K)
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    logit_bias: dict[str, float] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None


class Chat:
    """Chat Completions: ``/v1/chat/completions``."""

    def read(
        self, body: Mapping[str, Any], stored: Mapping[str, Sequence[Message]]
    ) -> ModelRequest:
        """Read a request.

        Raises:
            Refusal: If the request is wrong; the message names the field.
        """
        for name, allowed in _ONLY.items():
            if name in body and body[name] not in allowed:
                raise Refusal(f"{name}: not supported by this endpoint", param=name)
        fields = {k: v for k, v in body.items() if k not in _WITHOUT_EFFECT and k not in _ONLY}
        request = parse(_Request, fields)
        limit = request.max_completion_tokens or request.max_tokens
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
        if len(stop) > MOST_STOPS or not all(stop):
            raise Refusal(f"stop: at most {MOST_STOPS} texts, none of them empty", param="stop")
        sampling = {name: getattr(request, name) for name in _SAMPLING}
        sampling |= {"max_tokens": limit, "stop": tuple(stop) or None}
        options = {name: getattr(request, name) for name in _OPTIONS}
        before = stored.read if isinstance(stored, Stored) else ReadBefore()
        return ModelRequest(
            messages=settled(read_messages(request.messages, before)),
            tools=read_tools(request.tools or []),
            model=request.model,
            count=request.n or 1,
            stream=bool(request.stream),
            sampling={name: value for name, value in sampling.items() if value is not None},
            options={name: value for name, value in options.items() if value is not None},
            raw=body,
        )

    def answer(self, request: ModelRequest, answered: Answered) -> dict[str, Any]:
        """Return the body of the response."""
        choices = [
            {
                "index": index,
                "message": _message(reply),
                "finish_reason": _finish_reason(reply),
                "logprobs": None,
            }
            for index, reply in enumerate(answered.replies)
        ]
        head = _head(answered, "chat.completion")
        return {**head, "choices": choices, "usage": _usage(answered)}

    def events(self, request: ModelRequest, answered: Answered) -> Iterator[bytes]:
        """Yield the same answer as server-sent events."""
        head = _head(answered, "chat.completion.chunk")
        options = request.raw.get("stream_options") or {}
        usage = {"usage": None} if options.get("include_usage") else {}

        def chunk(index: int, delta: dict[str, Any], reason: str | None = None) -> bytes:
            choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None}
            return _event({**head, "choices": [choice], **usage})

        for index, reply in enumerate(answered.replies):
            message = reply.message
            yield chunk(index, {"role": "assistant", "content": ""})
            if message.reasoning:
                yield chunk(index, {"reasoning_content": message.reasoning})
            if message.content:
                yield chunk(index, {"content": message.content})
            for number, call in enumerate(message.to_openai().get("tool_calls", ())):
                yield chunk(index, {"tool_calls": [{"index": number, **call}]})
            yield chunk(index, {}, _finish_reason(reply))
        if usage:
            yield _event({**head, "choices": [], "usage": _usage(answered)})
        yield b"data: [DONE]\n\n"

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error response."""
        return openai_error(refusal)

    def failure(self, request: ModelRequest, refusal: Refusal) -> Iterator[bytes]:
        """Yield an error as server-sent events, for a stream that has begun."""
        yield _event(self.error(refusal))


def read_messages(raw: Sequence[Any], before: ReadBefore) -> list[Message]:
    """Read messages in OpenAI's chat format.

    Raises:
        Refusal: If a message is wrong; the error names it.
    """
    messages = before.recall(raw)
    for index, entry in enumerate(raw[len(messages) :], len(messages)):
        for name in ("content", "tool_calls"):
            if isinstance(entry, dict) and isinstance(entry.get(name), list):
                check_count(entry[name], f"messages[{index}].{name}")
        try:
            messages.append(_read_message(entry))
        except (ConfigError, TypeError, AttributeError) as error:
            where = f"messages[{index}]"
            raise Refusal(f"{where}: {error}", param=where) from error
    before.remember(raw, messages)
    return messages


def _read_message(raw: Any) -> Message:
    if not isinstance(raw, dict):
        raise ConfigError(f"a message must be an object, got {type(raw).__name__}")
    for name, value in raw.items():
        kind = _KINDS.get(name)
        if kind is not None and value is not None and not isinstance(value, kind):
            if kind is _Nothing:
                raise ConfigError(f"{name} is not supported")
            raise ConfigError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    if raw.get("role") == "tool" and raw.get("tool_call_id") is None:
        raise ConfigError("a tool message needs a tool_call_id")
    content = raw.get("content")
    if isinstance(content, list):
        raw = {**raw, "content": [_part(part) for part in content]}
    elif content is None and isinstance(raw.get("refusal"), str):
        raw = {**raw, "content": raw["refusal"]}
    return Message.from_openai(raw)


class _Nothing:
    """The type of fields that cannot be set."""


_KINDS: dict[str, type] = {
    "audio": _Nothing,
    "function_call": _Nothing,
    "name": str,
    "reasoning": str,
    "reasoning_content": str,
    "tool_call_id": str,
    "tool_calls": list,
}


def _part(part: Any) -> Any:
    """Return a content part; a refusal is text, too."""
    if isinstance(part, Mapping) and part.get("type") == "refusal" and "refusal" in part:
        return {"type": "text", "text": part["refusal"]}
    return part


def read_tools(raw: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tools in OpenAI's chat format, as an environment's own tools have it.

    Raises:
        Refusal: If a tool is not a function with a name.
    """
    tools = []
    for index, tool in enumerate(raw):
        function = tool.get("function")
        kind = tool.get("type", "function")
        if (
            kind != "function"
            or not isinstance(function, Mapping)
            or not isinstance(function.get("name"), str)
        ):
            where = f"tools[{index}]"
            raise Refusal(f"{where}: a tool must be a function with a name", param=where)
        # Some clients write the default out, which templates would show to the model.
        shown = {key: value for key, value in function.items() if key != "strict" or value}
        tools.append({**tool, "function": shown})
    return tools


def _head(answered: Answered, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answered.id}",
        "object": kind,
        "created": answered.created,
        "model": answered.model,
    }


def _message(reply: Reply) -> dict[str, Any]:
    raw = reply.message.to_openai()
    raw["content"] = raw["content"] or None
    return raw | {"refusal": None}


def _finish_reason(reply: Reply) -> str:
    reason = "stop" if reply.finish_reason == "refusal" else reply.finish_reason
    return "tool_calls" if reply.message.tool_calls and reason == "stop" else reason


def _usage(answered: Answered) -> dict[str, int]:
    prompt = answered.replies[0].prompt_tokens
    sampled = sum(reply.completion_tokens for reply in answered.replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _event(data: Any) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"
