"""The content blocks of Anthropic's Messages, from and to messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vf.inference.endpoint.dialect import Refusal
from vf.inference.endpoint.reading import (
    entries,
    part_text,
    parts_of,
    read_part,
    separated,
    string,
    text_of,
)
from vf.traces.messages import Message, ToolCall

# A call's input must be an object. What a model wrote instead is its one field.
UNREADABLE = "_unreadable_arguments"

TEXT = {"text": "text"}  # the type of the blocks that are text, and their field


def messages_of(raw: Mapping[str, Any], where: str) -> list[Message]:
    """Return the messages that one of Anthropic's is: a user's may hold results of tools, too.

    Raises:
        Refusal: If it is ill-formed, or holds what is not supported.
    """
    role, content = raw.get("role"), raw.get("content")
    path = f"{where}.content"
    if role == "system":
        return [Message("system", text_of(content, path, TEXT))]
    if role not in ("user", "assistant"):
        raise Refusal(
            f"{where}.role must be user or assistant, got {role!r}", param=f"{where}.role"
        )
    if isinstance(content, str):
        return [Message(role, content)]
    blocks = entries(content, path)
    return [_assistant(blocks)] if role == "assistant" else _user(blocks)


def blocks_of(message: Message, signature: str | None) -> Iterator[dict[str, Any]]:
    """Yield the blocks of an answer.

    Args:
        message: The answer.
        signature: The signature of its thinking, which clients leave out unless it is signed; None
            for clients that want no thinking.
    """
    if message.reasoning is not None and signature is not None:
        yield {"type": "thinking", "thinking": message.reasoning, "signature": signature}
    if message.content or not message.tool_calls:
        yield {"type": "text", "text": message.content}
    for call in message.tool_calls:
        given = _input(call.arguments)
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def in_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as it begins, and what is then added to it."""
    match block["type"]:
        case "thinking":
            thought = {"type": "thinking_delta", "thinking": block["thinking"]}
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [thought, signed]
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case _:
            text = json.dumps(block["input"])
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]


def _user(blocks: list[tuple[str, dict[str, Any]]]) -> list[Message]:
    results, content = [], []
    for where, block in blocks:
        if block.get("type") == "tool_result":
            parts = parts_of(block.get("content") or "", f"{where}.content", TEXT)
            call = string(block, "tool_use_id", where)
            result = Message.of("tool", parts, tool_call_id=call)
            if block.get("is_error") and not result.content.startswith("Error"):
                result = Message.of("tool", ["Error: ", *parts], tool_call_id=call)
            results.append(result)
        else:
            content.append(read_part(block, where, TEXT))
    return results + ([Message.of("user", separated(content))] if content or not results else [])


def _assistant(blocks: list[tuple[str, dict[str, Any]]]) -> Message:
    message = Message("assistant")
    for where, block in blocks:
        match block.get("type"):
            case "thinking":
                message.reasoning = (message.reasoning or "") + string(block, "thinking", where)
            case "redacted_thinking":
                pass  # another model's, and unreadable
            case "tool_use":
                message.tool_calls.append(_call(block, where))
            case _:
                message.content += part_text(block, where, TEXT)
    return message


def _call(block: Mapping[str, Any], where: str) -> ToolCall:
    given = block.get("input")
    if not isinstance(given, dict):
        raise Refusal(f"{where}.input must be an object", param=f"{where}.input")
    raw = given.get(UNREADABLE) if len(given) == 1 else None
    arguments = raw if isinstance(raw, str) else json.dumps(given, ensure_ascii=False)
    return ToolCall(string(block, "id", where), string(block, "name", where), arguments)


def _input(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as the object that Anthropic's clients need."""
    try:
        value = json.loads(arguments or "{}")
        # Not JSON (NaN), or JSON that cannot be written again (1e999, half a surrogate pair).
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        value = None
    readable = isinstance(value, dict) and list(value) != [UNREADABLE]
    return value if readable else {UNREADABLE: arguments}
