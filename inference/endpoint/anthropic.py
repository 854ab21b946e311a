"""Anthropic's Messages API: ``POST /v1/messages``.

The request and its answer are described at https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from vf.inference.endpoint.anthropic_blocks import TEXT, blocks_of, in_deltas, messages_of
from vf.inference.endpoint.dialect import Answered, ModelRequest, Refusal
from vf.inference.endpoint.reading import (
    EXACT,
    entries,
    event,
    function_tool,
    parse,
    settled,
    string,
    text_of,
)
from vf.inference.model import Reply
from vf.inference.request_limits import MOST_MESSAGES, MOST_PARTS, MOST_STOPS, MOST_TOOLS
from vf.inference.settings import Temperature, TopK, TopP
from vf.traces.messages import Message

_Stop = Annotated[str, Field(min_length=1)]
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Request(BaseModel):
    """The fields that are read, and after them those that change nothing here."""

    model_config = EXACT

    model: str
    max_tokens: int = Field(ge=1)
    messages: list[Any] = Field(min_length=1, max_length=MOST_MESSAGES)
    system: str | Annotated[list[Any], Field(max_length=MOST_PARTS)] | None = None
    tools: list[Any] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[_Stop] | None = Field(None, max_length=MOST_STOPS)
    temperature: Temperature | None = Field(None, le=1)
    top_p: TopP | None = None
    top_k: TopK | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    stream: bool = False
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    inference_geo: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class Anthropic:
    """Reads and writes Anthropic's Messages. It keeps no state.

    Reasoning is a ``thinking`` block, for clients that ask for ``thinking``; others expect an
    answer to begin with its text.
    """

    def read(
        self, body: Mapping[str, Any], stored: Mapping[str, Sequence[Message]]
    ) -> ModelRequest:
        """Read a request.

        Args:
            body: The parsed JSON.
            stored: Not needed: a request holds its whole conversation.

        Raises:
            Refusal: If the request is wrong; the message names the field.
        """
        request = parse(_Request, body)
        messages: list[Message] = []
        if request.system:
            messages.append(Message("system", text_of(request.system, "system", TEXT)))
        for where, raw in entries(request.messages, "messages", MOST_MESSAGES):
            messages += messages_of(raw, where)
        if messages[-1].role == "assistant":
            raise Refusal(
                "messages: the last message is the assistant's, and the beginning of an answer "
                "cannot be given here; end with a user message",
                param="messages",
            )
        sampling = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "stop": tuple(request.stop_sequences or ()) or None,
        }
        return ModelRequest(
            messages=settled(messages),
            tools=[_tool(raw, where) for where, raw in entries(request.tools or [], "tools")],
            model=request.model,
            stream=request.stream,
            sampling={name: value for name, value in sampling.items() if value is not None},
            options=_options(request),
            raw=body,
        )

    def answer(self, request: ModelRequest, answered: Answered) -> dict[str, Any]:
        """Return the body of the response."""
        (reply,) = answered.replies
        return {
            **_opening(answered),
            "content": list(_blocks(request, answered)),
            **_ending(request, reply),
            "usage": _usage(reply, reply.completion_tokens),
        }

    def events(self, request: ModelRequest, answered: Answered) -> Iterator[bytes]:
        """Yield the same answer as server-sent events."""
        (reply,) = answered.replies
        message = {**_opening(answered), "usage": _usage(reply, 0)}
        yield event({"type": "message_start", "message": message})
        yield event({"type": "ping"})
        for index, block in enumerate(_blocks(request, answered)):
            empty, deltas = in_deltas(block)
            yield event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield event({"type": "content_block_delta", "index": index, "delta": delta})
            yield event({"type": "content_block_stop", "index": index})
        usage = _usage(reply, reply.completion_tokens)
        yield event({"type": "message_delta", "delta": _ending(request, reply), "usage": usage})
        yield event({"type": "message_stop"})

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error response."""
        message = str(refusal)
        if refusal.code == "context_length_exceeded":
            message = f"prompt is too long: {message}"  # how clients know that they must compact
        other = "api_error" if refusal.status >= 500 else "invalid_request_error"
        kind = _ERRORS.get(refusal.status, other)
        return {"type": "error", "error": {"type": kind, "message": message}}

    def failure(self, request: ModelRequest, refusal: Refusal) -> Iterator[bytes]:
        """Yield an error as server-sent events, for a stream that has begun."""
        yield event(self.error(refusal))


def _options(request: _Request) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if request.tool_choice is not None:
        options |= _tool_choice(request.tool_choice)
    form = (request.output_config or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {"name": "output", "schema": form.get("schema"), "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _tool(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = raw.get("type") or "custom"
    if kind != "custom":
        raise Refusal(
            f"{where}: the tool {kind!r} is defined by Anthropic and does not exist here; leave it "
            "out, or declare a tool of your own with an input_schema",
            param=where,
        )
    return function_tool(raw, where, "input_schema", name=string(raw, "name", where))


def _tool_choice(raw: Mapping[str, Any]) -> dict[str, Any]:
    kind = raw.get("type")
    options: dict[str, Any] = {}
    if kind == "tool":
        function = {"name": string(raw, "name", "tool_choice")}
        options["tool_choice"] = {"type": "function", "function": function}
    elif isinstance(kind, str) and kind in _CHOICES:
        options["tool_choice"] = _CHOICES[kind]
    else:
        kinds = ", ".join([*_CHOICES, "tool"])
        raise Refusal(f"tool_choice.type must be one of {kinds}, got {kind!r}", param="tool_choice")
    if raw.get("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    return options


def _opening(answered: Answered) -> dict[str, Any]:
    return {
        "id": f"msg_{answered.id}",
        "type": "message",
        "role": "assistant",
        "model": answered.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(request: ModelRequest, answered: Answered) -> Iterator[dict[str, Any]]:
    thinking = (request.raw.get("thinking") or {}).get("type", "disabled") != "disabled"
    return blocks_of(answered.replies[0].message, f"sig_{answered.id}" if thinking else None)


def _ending(request: ModelRequest, reply: Reply) -> dict[str, str | None]:
    stop = reply.stop if reply.stop in request.sampling.get("stop", ()) else None
    reason = "end_turn" if stop is None else "stop_sequence"
    if reply.finish_reason == "length":
        reason = "max_tokens"
    elif reply.finish_reason != "stop":
        reason = "refusal"
    elif reply.message.tool_calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(reply: Reply, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "service_tier": "standard",
    }
