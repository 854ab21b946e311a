"""Chat messages and tool calls: OpenAI's chat format, typed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import Field, TypeAdapter

from vf.runtime.errors import ConfigError
from vf.traces.images import Image, image_of, is_picture, placed

Role = Literal["system", "user", "assistant", "tool"]
_ROLES = get_args(Role)
_SEEN = ("user", "tool")  # the roles of messages that may hold images
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
        content: The text; half a surrogate pair in it becomes ``?``. May be given as a list of
            texts, images and content parts of an API: the texts are joined. None is ``""``. Audio
            and files are not supported.
        reasoning: What the model thought before it answered (assistant only).
        tool_calls: The calls the model asked for (assistant only).
        tool_call_id: Which call this answers (tool only).
        name: The tool's name (tool only).
        images: The images, with their places in the text (user and tool only).
        raw: The message as an API sent it (assistant only), which the API gets back unchanged. Not
            part of a trace.

    Raises:
        ConfigError: If the content is neither text nor images, or a message of another role holds
            an image.
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None
    images: list[Image] = field(default_factory=list)
    raw: Annotated[dict[str, Any] | None, Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            self.content, self.images = placed([*_parts(self.content)])
        self.content = writable(self.content)
        if self.images and self.role not in _SEEN:
            raise ConfigError(
                f"a message of the role {self.role!r} cannot hold images, but those of users and "
                "tools can"
            )
        if self.reasoning is not None:
            self.reasoning = writable(self.reasoning)

    @classmethod
    def of(
        cls,
        role: Role,
        parts: str | Sequence[str | Image],
        *,
        tool_call_id: str | None = None,
        name: str | None = None,
    ) -> Message:
        """Return a message of text, or of texts and images in their order."""
        text, images = placed([parts] if isinstance(parts, str) else parts)
        return cls(role, text, tool_call_id=tool_call_id, name=name, images=images)

    @property
    def parts(self) -> list[str | Image]:
        """The texts and images in their order; the content alone without images."""
        if not self.images:
            return [self.content]
        parts: list[str | Image] = []
        begin = 0
        for image in self.images:
            parts += [self.content[begin : image.at], image]
            begin = max(begin, image.at)
        return [part for part in (*parts, self.content[begin:]) if part]

    def to_openai(self) -> dict[str, Any]:
        """Return the message as the OpenAI chat API wants it; images are data URLs.

        Raises:
            ConfigError: If an image's file is missing or damaged.
        """
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.images:
            out["content"] = [
                part.to_openai() if isinstance(part, Image) else {"type": "text", "text": part}
                for part in self.parts
            ]
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
            ConfigError: If the role is unknown, the content is neither text nor images, or a tool
                call is not one of a function.
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
            content=cast(str, raw.get("content")),  # read when the message is made
            reasoning=_reasoning(raw),
            tool_calls=[_tool_call(call) for call in calls],
            tool_call_id=raw.get("tool_call_id"),
            name=raw.get("name"),
        )


def recorded(message: Message) -> Any:
    """Return a message as a trace holds it, in JSON's types."""
    return _adapter().dump_python(message, mode="json")


@cache
def _adapter() -> TypeAdapter[Message]:
    return TypeAdapter(Message)


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


def _parts(content: object) -> Iterator[str | Image]:
    """Yield the texts and images of content that is not text."""
    if content is None:
        return
    if not isinstance(content, list):
        raise ConfigError(f"message content must be text, got {type(content).__name__}")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if isinstance(part, str):
            yield part
        elif is_picture(part):
            yield Image.of(part)
        elif kind in _TEXTS and isinstance(part.get("text"), str):
            yield part["text"]
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            yield part["refusal"]
        elif isinstance(part, Mapping) and (image := image_of(part)) is not None:
            yield image
        elif kind not in (*_THOUGHTS, *_NO_TEXT):
            raise ConfigError(
                f"message content must be text or images, and holds a part of type {kind!r}: audio "
                "and files are not supported"
            )


def _reasoning(raw: Mapping[str, Any]) -> str | None:
    """Return what a message says was thought, whichever field and form it has."""
    content = raw.get("content")
    parts = content if isinstance(content, list) else []
    thoughts = [p for p in parts if isinstance(p, Mapping) and p.get("type") in _THOUGHTS]
    fields = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
    texts = (_thought(value) for value in (*(raw.get(name) for name in fields), thoughts))
    return next(filter(None, texts), None)


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
        ConfigError: If the prompt is none of these.
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
