"""OpenAI's Responses API: ``POST /v1/responses``.

The request and its answer are described at
https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from vf.inference.endpoint.dialect import Answered, ModelRequest, Refusal
from vf.inference.endpoint.reading import (
    EXACT,
    event,
    openai_error,
    parse,
    settled,
    string,
)
from vf.inference.endpoint.response_items import (
    begun,
    item_events,
    items_of,
    messages_of,
    response_id,
    stored_messages,
)
from vf.inference.endpoint.response_tools import tool_choice_of, tools_of
from vf.inference.request_limits import MOST_TOOLS
from vf.inference.settings import Temperature, TopP
from vf.traces.messages import Message

_CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _Text(BaseModel):
    model_config = EXACT

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _Reasoning(BaseModel):
    model_config = EXACT

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class _Request(BaseModel):
    """The fields that are read, and after them those that change nothing here."""

    model_config = EXACT

    model: str
    input: str | list[Any] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Any] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = Field(None, le=2)
    top_p: TopP | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    stream: bool | None = None
    # Nothing is done in the background, and only what the agent sends is a conversation.
    background: Literal[False] | None = None
    store: bool | None = None
    truncation: str | None = None
    stream_options: dict[str, Any] | None = None
    max_tool_calls: int | None = None  # counts OpenAI's own tools
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    client_metadata: dict[str, Any] | None = None


class Responses:
    """Reads and writes OpenAI's Responses. It keeps no state.

    An answer is up to three kinds of items: its reasoning, its text, its calls. Sent back, they
    are one message again, with or without their ids. Reasoning is the item's summary where the
    client asks for one, else its content, and also the ``encrypted_content`` for those that ask for
    that: it is not secret, and spares clients from keeping what they do not show.
    """

    def read(
        self, body: Mapping[str, Any], stored: Mapping[str, Sequence[Message]]
    ) -> ModelRequest:
        """Read a request.

        Args:
            body: The parsed JSON.
            stored: The conversations of earlier answers of this rollout, by ``Answered.id``.

        Raises:
            Refusal: If the request is wrong; the message names the field.
        """
        request = parse(_Request, body)
        messages: list[Message] = []
        if request.previous_response_id is not None:
            messages += stored_messages(request.previous_response_id, stored)
        if isinstance(request.input, str):
            messages.append(Message("user", request.input))
        else:
            messages += messages_of(request.input, stored)
        sampling = {
            "max_tokens": request.max_output_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
        }
        options = {
            "tool_choice": request.tool_choice and tool_choice_of(request.tool_choice),
            "parallel_tool_calls": request.parallel_tool_calls,
            "response_format": _response_format(request.text),
            "reasoning_effort": request.reasoning and request.reasoning.effort,
            "verbosity": request.text and request.text.verbosity,
        }
        return ModelRequest(
            messages=_with_one_system(request.instructions, settled(messages)),
            tools=tools_of(request.tools),
            model=request.model,
            stream=bool(request.stream),
            sampling={name: value for name, value in sampling.items() if value is not None},
            options={name: value for name, value in options.items() if value is not None},
            raw=body,
        )

    def answer(self, request: ModelRequest, answered: Answered) -> dict[str, Any]:
        """Return the body of the response."""
        (reply,) = answered.replies
        cut = _CUTS.get(reply.finish_reason)
        return _response(
            request,
            answered,
            status="incomplete" if cut else "completed",
            incomplete_details={"reason": cut} if cut else None,
            output=items_of(request.raw, answered.id, reply),
            usage={
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": reply.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt_tokens + reply.completion_tokens,
            },
        )

    def events(self, request: ModelRequest, answered: Answered) -> Iterator[bytes]:
        """Yield the same answer as server-sent events."""
        return _numbered(self._events(request, answered))

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error response."""
        return openai_error(refusal)

    def failure(self, request: ModelRequest, refusal: Refusal) -> Iterator[bytes]:
        """Yield an error as server-sent events, for a stream that has begun.

        Some clients raise at the first event, others read the second.
        """
        failed = _response(
            request,
            Answered((), request.model),
            status="failed",
            error={"code": refusal.code or "server_error", "message": str(refusal)},
        )
        events = [
            {"type": "error", **openai_error(refusal)},
            {"type": "response.failed", "response": failed},
        ]
        return _numbered(iter(events))

    def _events(self, request: ModelRequest, answered: Answered) -> Iterator[dict[str, Any]]:
        opening = _response(request, answered, status="in_progress")
        yield {"type": "response.created", "response": opening}
        yield {"type": "response.in_progress", "response": opening}
        response = self.answer(request, answered)
        for index, item in enumerate(response["output"]):
            yield {
                "type": "response.output_item.added",
                "output_index": index,
                "item": begun(item),
            }
            for happened in item_events(item):
                yield {**happened, "item_id": item["id"], "output_index": index}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{response['status']}", "response": response}


def _with_one_system(instructions: str | None, messages: list[Message]) -> list[Message]:
    """Put the instructions first, and join them with the system messages that they precede.

    Agents send several, and most chat templates show one.
    """
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    texts = [instructions] if instructions else []
    texts += [message.content for message in messages[:leading]]
    system = [Message("system", "\n\n".join(texts))] if texts else []
    return system + messages[leading:]


def _response_format(text: _Text | None) -> dict[str, Any] | None:
    """Return ``text.format`` as Chat Completions has it."""
    if text is None or text.format is None:
        return None
    where = "text.format"
    kind = string(text.format, "type", where)
    if kind == "json_schema":
        schema = {name: value for name, value in text.format.items() if name != "type"}
        return {"type": kind, "json_schema": schema}
    if kind not in ("text", "json_object"):
        raise Refusal(
            f"{where}.type must be text, json_object or json_schema, got {kind!r}", param=where
        )
    return None if kind == "text" else {"type": kind}


def _response(request: ModelRequest, answered: Answered, **fields: Any) -> dict[str, Any]:
    raw = request.raw
    parallel = raw.get("parallel_tool_calls")
    return {
        "id": response_id(answered.id, raw.get("instructions")),
        "object": "response",
        "created_at": answered.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": raw.get("instructions"),
        "max_output_tokens": raw.get("max_output_tokens"),
        "metadata": raw.get("metadata") or {},
        "model": answered.model,
        "output": [],
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": raw.get("previous_response_id"),
        "reasoning": raw.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": raw.get("store") is not False,
        "temperature": raw.get("temperature"),
        "text": raw.get("text") or {"format": {"type": "text"}},
        "tool_choice": raw.get("tool_choice") or "auto",
        "tools": raw.get("tools") or [],
        "top_p": raw.get("top_p"),
        "truncation": "disabled",  # nothing is ever left out of a conversation
        "usage": None,
        **fields,
    }


def _numbered(events: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    for number, data in enumerate(events):
        yield event({**data, "sequence_number": number})
