"""Chat messages and tool calls: OpenAI's chat format, typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import Field

from vf.runtime.errors import ConfigError

Role = Literal["system", "user", "assistant", "tool"]
_ROLES = get_args(Role)
_TEXTS = ("text", "output_text", "input_text")  # the kinds of parts that hold text
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "summary_text", "reasoning_text")
_NO_TEXT = ("reference",)  # kinds of parts that point to sources, and say nothing


@dataclass(slots=True)
class ToolCall:
    """One call that the model asked for.

    Attributes:
        id: Unique within the conversation; the tool message that answers carries it.
        name: The tool's name, as the model wrote it (empty if ``malformed``).
        arguments: The arguments exactly as the model wrote them, JSON or not.
        malformed: Why the call could not be parsed, or None if it could.
    """

    id: str
    name: str
    arguments: str
    malformed: str | None = None

    def __post_init__(self) -> None:
        self.name, self.arguments = writable(self.name), writable(self.arguments)


@dataclass(slots=True)
class Message:
    """One chat message.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: The text; half a surrogate pair in it becomes ``?``. The text parts of a list are
            joined, and None is ``""``. Images, audio and files are not supported.
        reasoning: What the model thought before it answered (assistant only).
        tool_calls: The calls the model asked for (assistant only).
        tool_call_id: Which call this answers (tool only).
        name: The tool's name (tool only).
        raw: The message as an API sent it (assistant only), which the API gets back unchanged. Not
            part of a trace.

    Raises:
        ConfigError: The content is not text.
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None
    raw: Annotated[dict[str, Any] | None, Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        self.content = writable(_text(self.content))
        if self.reasoning is not None:
            self.reasoning = writable(self.reasoning)

    def to_openai(self) -> dict[str, Any]:
        """Return the message as the OpenAI chat API wants it."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        if self.role == "tool":
            out["tool_call_id"] = self.tool_call_id
            if self.name is not None:
                out["name"] = self.name
        return out

    @classmethod
    def from_openai(cls, raw: Mapping[str, Any]) -> Message:
        """Read a message in OpenAI's chat format.

        Raises:
            ConfigError: The role is unknown, the content is not text, or a tool call is not one
                of a function.
        """
        role = raw.get("role")
        if role == "developer":
            role = "system"
        if role not in _ROLES:
            raise ConfigError(f"message role {role!r} is not one of {', '.join(_ROLES)}")
        calls = raw.get("tool_calls") or []
        if not isinstance(calls, list | tuple):
            raise ConfigError(f"tool_calls must be a list, got {type(calls).__name__}")
        return cls(
            role=cast(Role, role),
            content=_text(raw.get("content")),
            reasoning=_reasoning(raw),
            tool_calls=[_tool_call(call) for call in calls],
            tool_call_id=raw.get("tool_call_id"),
            name=raw.get("name"),
        )


def writable(text: str) -> str:
    """Return a text as tokenizers and files can hold it: half a surrogate pair becomes ``?``."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _tool_call(raw: object) -> ToolCall:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or not isinstance(function, Mapping) or "name" not in function:
        raise ConfigError(f"a tool call must hold a function with a name, got {raw!r}")
    arguments, name = function.get("arguments") or "{}", function["name"]
    given = raw.get("id")
    return ToolCall(
        id="" if given is None else str(given),
        name="" if name is None else str(name),
        # Datasets often hold the object itself, as chat templates take it.
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments),
    )


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise ConfigError(f"message content must be text, got {type(content).__name__}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind in _TEXTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind not in (*_THOUGHTS, *_NO_TEXT):
            raise ConfigError(
                f"message content must be text, and holds a part of type {kind!r}: images, audio "
                "and files are not supported"
            )
    return "".join(texts)


def _reasoning(raw: Mapping[str, Any]) -> str | None:
    """Return what a message says was thought, whichever field and form it has."""
    content = raw.get("content")
    parts = content if isinstance(content, list) else []
    thoughts = [p for p in parts if isinstance(p, Mapping) and p.get("type") in _THOUGHTS]
    fields = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
    found = (_thought(value) for value in (*(raw.get(name) for name in fields), thoughts))
    return next(filter(None, found), None)


def _thought(value: object) -> str:
    """Return the text of reasoning: text, parts of it, or a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_thought, value))
    if isinstance(value, Mapping):
        names = ("text", "thinking", "reasoning", "content", "summary")
        return next(filter(None, (_thought(value.get(name)) for name in names)), "")
    return ""


def as_messages(prompt: str | list[Message] | list[dict[str, Any]]) -> list[Message]:
    """Return a prompt (text, messages, or OpenAI chat dicts) as a new list of messages.

    Raises:
        ConfigError: The prompt is none of these.
    """
    if isinstance(prompt, str):
        return [Message("user", prompt)]
    if not isinstance(prompt, list):
        raise ConfigError(
            f"a prompt must be text or a list of chat messages, got {type(prompt).__name__}"
        )
    messages: list[Message] = []
    for entry in prompt:
        if isinstance(entry, Message):
            messages.append(entry)
        elif isinstance(entry, Mapping):
            messages.append(Message.from_openai(entry))
        else:
            raise ConfigError(
                "a prompt's messages must be vf.Message or dicts in OpenAI's chat format, "
                f"got {type(entry).__name__}"
            )
    return messages
