"""A tool as a method that TRL, and transformers below it, can read a schema from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.traces.tools import Tool

_TYPES = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": type(None),
}


def as_method(tool: Tool) -> Callable[..., Any]:
    """Return a coroutine method whose signature and docstring express the tool's schema.

    It passes its arguments to the tool, which checks them: a wrong argument gets the same answer as
    in vf-rl's own loop.

    Raises:
        ConfigError: If the tool's parameters cannot be expressed in Python.
    """

    async def method(self: Any, /, **arguments: Any) -> str:
        return await self._episode.call(tool.name, arguments)  # type: ignore[no-any-return]

    schema = tool.parameters
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    hints: dict[str, Any] = {}
    required = schema.get("required", ())
    for name, part in schema["properties"].items():
        hints[name] = _hint(part)
        default = inspect.Parameter.empty if name in required else part.get("default")
        try:
            parameters.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name]
                )
            )
        except ValueError as error:
            raise ConfigError(
                f"to_trl: tool {tool.name!r}: {error}, as TRL needs it to be; use loop='vf'"
            ) from error
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = _docstring(tool)
    method.__annotations__ = hints
    method.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    _check(method, tool)
    return method


def _hint(schema: Mapping[str, Any]) -> Any:
    """Return the Python type of a JSON schema, as near as transformers knows one."""
    if isinstance(schema.get("enum"), list):
        return Literal[tuple(schema["enum"])]
    if "const" in schema:
        return Literal[(schema["const"],)]
    options = schema.get("anyOf") or schema.get("oneOf")
    if not options and isinstance(schema.get("type"), list):
        options = [{**schema, "type": kind} for kind in schema["type"]]
    if options:
        return Union[tuple(_hint(option) for option in options)]  # noqa: UP007
    if schema.get("type") == "array":
        return list[_hint(schema["items"])] if isinstance(schema.get("items"), dict) else list  # type: ignore[misc]
    return _TYPES.get(str(schema.get("type")), Any)


def _docstring(tool: Tool) -> str:
    lines = [_plain(tool.description) or tool.name]
    if tool.parameters["properties"]:
        lines += ["", "Args:"]
    for name, part in tool.parameters["properties"].items():
        lines.append(f"    {name}: {_plain(str(part.get('description') or name))}")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return text in one line, with nothing that begins a section of a docstring."""
    return re.sub(r"\b(Args|Returns|Raises):", r"\1 -", " ".join(text.split()))


def _check(method: Callable[..., Any], tool: Tool) -> None:
    """Check that transformers reads the tool's parameters from the method."""
    chat: Any = load("transformers.utils", "trl")
    try:
        read = chat.get_json_schema(method)["function"]["parameters"]
    except Exception as error:  # it has several of its own
        raise ConfigError(
            f"to_trl: tool {tool.name!r}: TRL cannot express its parameters ({error}); use "
            "loop='vf'"
        ) from error
    ours = tool.parameters
    if set(read["properties"]) != set(ours["properties"]):
        raise ConfigError(
            f"to_trl: tool {tool.name!r}: TRL loses some of its parameters; loop='vf'"
        )
