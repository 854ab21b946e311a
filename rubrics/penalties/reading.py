"""What the model itself did and wrote, read off a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vf.traces.messages import Message, ToolCall
from vf.traces.trace import Trace


def sampled_messages(trace: Trace) -> list[Message]:
    """Return the model's messages: the assistant's, but for those that the prompt held."""
    return [m for m in trace.messages[trace.prompt_messages :] if m.role == "assistant"]


def sampled_calls(trace: Trace) -> list[ToolCall]:
    """Return every tool call that the model asked for, malformed ones included, in order."""
    return [call for message in sampled_messages(trace) for call in message.tool_calls]


def sampled_text(trace: Trace) -> str:
    """Return all that the model wrote: reasoning, text and the arguments of its calls."""
    parts: list[str] = []
    for message in sampled_messages(trace):
        parts += [message.reasoning or "", message.content]
        parts += [text for call in message.tool_calls for text in argument_texts(call)]
    return "\n".join(part for part in parts if part)


def argument_texts(call: ToolCall) -> list[str]:
    """Return a call's arguments as written, and every text in them with its escapes undone."""
    return [call.arguments, *_texts(_decoded(call))]


def same_call(call: ToolCall) -> tuple[str, str]:
    """Return a key that two calls share if they ask for the same thing.

    Order of the arguments and blanks between them do not matter.
    """
    decoded = _decoded(call)
    if decoded is None:
        return call.name, call.arguments
    return call.name, json.dumps(decoded, sort_keys=True)


def _decoded(call: ToolCall) -> Any:
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
