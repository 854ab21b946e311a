"""Conversion between messages of verifiers and vf-rl. Its two APIs have separate classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic_core
from pydantic import BaseModel

from vf.runtime.errors import EnvironmentFailure
from vf.traces.messages import Message, ToolCall
from vf.traces.tools import Tool

_SHOWN = 100  # characters of arguments that nobody can read
ROLES = ("system", "user", "assistant", "tool")


def to_ours(message: Any) -> Message:
    """Return one of verifiers' messages as ours.

    Raises:
        EnvironmentFailure: If it is no chat message, or holds more than text.
    """
    role = _field(message, "role")
    if role not in ROLES:
        raise EnvironmentFailure(f"verifiers: a message has the role {role!r}, which is not chat's")
    return Message(
        role=role,
        content=_text(_field(message, "content")),
        reasoning=_field(message, "reasoning_content"),
        tool_calls=[
            ToolCall(_field(call, "id"), _field(call, "name"), _field(call, "arguments"))
            for call in _field(message, "tool_calls") or ()
        ],
        tool_call_id=_field(message, "tool_call_id"),
        name=_field(message, "name") if role == "tool" else None,
    )


def to_theirs(message: Message, types: Any, *, tools: bool, **fields: Any) -> Any:
    """Return an answer of the model as one of verifiers' assistant messages.

    Args:
        message: The answer.
        types: The module that holds its ``AssistantMessage`` (or what ``fields`` ask for) and
            ``ToolCall``.
        tools: Whether the model was offered any.
        **fields: Further fields; with any, the class is ``ResponseMessage``.
    """
    cls = types.ResponseMessage if fields else types.AssistantMessage
    calls = [
        types.ToolCall(id=call.id, name=call.name, arguments=_cut(call.arguments))
        for call in message.tool_calls
    ]
    # As an API has it: no text beside tool calls is null, else it is "". An API makes a call only
    # of what it can read, and where there are tools.
    read = all(call.malformed is None for call in message.tool_calls)
    content = message.content or (None if calls and tools and read else "")
    return cls(
        content=content, reasoning_content=message.reasoning, tool_calls=calls or None, **fields
    )


def _cut(arguments: str) -> str:
    """Return arguments that verifiers can read, or that it recognizes as invalid JSON.

    Nesting beyond the interpreter's recursion limit would be a failure of the rollout.
    """
    try:
        pydantic_core.from_json(arguments)
    except ValueError as error:
        return arguments[:_SHOWN] if "recursion limit" in str(error) else arguments
    return arguments


def same(one: Any, other: Any) -> bool:
    """Return whether two of verifiers' messages say the same, whatever made them.

    Reasoning is not compared, for an environment may drop it; the renderer decides about ours.
    """
    if one is other:
        return True
    a, b = to_ours(one), to_ours(other)
    return (a.role, a.content, a.tool_calls, a.tool_call_id) == (
        b.role,
        b.content,
        b.tool_calls,
        b.tool_call_id,
    )


def announced(name: str, description: str, parameters: Mapping[str, Any]) -> Tool:
    """Return a tool of verifiers with its schema for the model; verifiers' own code runs it."""
    return Tool(name, description, dict(parameters), _not_here, BaseModel)


def _not_here(**arguments: Any) -> None:
    raise EnvironmentFailure("verifiers' own code calls its tools")


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = list(content)
    for part in parts:
        if _field(part, "type") != "text":
            raise EnvironmentFailure(
                f"verifiers: a message holds {_field(part, 'type')!r}; only text can be shown"
            )
    return "".join(str(_field(part, "text")) for part in parts)
