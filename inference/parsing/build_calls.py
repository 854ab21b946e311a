"""Builds tool calls from what a model wrote, or gives the reason why it cannot."""

from __future__ import annotations

import json
from typing import Any

from vf.traces.messages import ToolCall

_ARGUMENTS = ("arguments", "parameters")
_BESIDE = ("id", "tool_call_id", "type", "index")  # keys that hold no arguments


class Unreadable(Exception):
    """A call cannot be read; the text is the reason, written for the model."""


def malformed(raw: str, reason: str) -> ToolCall:
    """Return the call that stands for an unreadable one."""
    return ToolCall("", "", raw.strip(), malformed=reason)


def decode(text: str) -> Any:
    """Decode JSON.

    Raises:
        Unreadable: If it is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not valid JSON: {error}") from error


def call_from_object(
    value: object, *, name: str = "name", arguments: str = "arguments"
) -> ToolCall:
    """Build a call from a JSON object that holds its name and its arguments.

    Models of one family use another's key, too: "parameters" stands for "arguments", and the other
    way round.

    Raises:
        Unreadable: If it is not an object, has no name, holds arguments where none belong, or
            cannot be written down again.
    """
    if not isinstance(value, dict):
        raise Unreadable("it is not a JSON object")
    called = value.get(name)
    if not isinstance(called, str) or not called:
        raise Unreadable(f"it has no {name!r}")
    held = [key for key in _ARGUMENTS if key in value]
    if len(held) > 1:
        raise Unreadable(f"it has both {held[0]!r} and {held[1]!r}")
    unknown = [key for key in value if key not in (name, *_ARGUMENTS, *_BESIDE)]
    if not held and unknown:
        raise Unreadable(f"it has {unknown[0]!r}, but its arguments belong in {arguments!r}")
    given = value[held[0]] if held else {}
    # Some templates write the arguments as a JSON string; both forms mean the same.
    return _call(called, given if isinstance(given, str) else _encode(given))


def call_from_text(name: str, arguments: str) -> ToolCall:
    """Build a call from its name and its arguments as JSON text, which is kept as written.

    Raises:
        Unreadable: If the name is missing, or the arguments are not JSON.
    """
    if not name:
        raise Unreadable("it has no name")
    decode(arguments)
    return _call(name, arguments.strip())


def call_from_values(name: str, arguments: dict[str, Any]) -> ToolCall:
    """Build a call from its name and its decoded arguments.

    Raises:
        Unreadable: If it cannot be written down again.
    """
    return _call(name, _encode(arguments))


def calls_from_json(
    text: str, *, name: str = "name", arguments: str = "arguments"
) -> list[ToolCall]:
    """Build the calls of a JSON list of objects, or of one object.

    A list entry that cannot be read becomes a malformed call; the others are not affected.

    Raises:
        Unreadable: If the text is not JSON, its one object cannot be read, or an entry can neither
            be read nor written down again.
    """
    value = decode(text)
    if not isinstance(value, list):
        return [call_from_object(value, name=name, arguments=arguments)]
    calls = []
    for entry in value:
        try:
            calls.append(call_from_object(entry, name=name, arguments=arguments))
        except Unreadable as problem:
            # Keep the entry alone: the whole list in each would take quadratic space.
            calls.append(malformed(_encode(entry), str(problem)))
    return calls


def _encode(value: object) -> str:
    try:
        return json.dumps(value)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it cannot be written down again: {error}") from error


def _call(name: str, arguments: str) -> ToolCall:
    try:
        f"{name}{arguments}".encode()  # JSON can spell half characters, which no file can hold
    except UnicodeEncodeError as error:
        raise Unreadable(f"it cannot be written down again: {error}") from error
    return ToolCall("", name, arguments)
