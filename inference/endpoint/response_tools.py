"""The tools of the Responses API, as functions.

A ``namespace`` is a group of functions. A ``custom`` tool takes plain text, here its one argument.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vf.inference.endpoint.dialect import Refusal
from vf.inference.endpoint.reading import entries, function_tool, string
from vf.traces.messages import ToolCall, writable

_INPUT = "input"  # the one argument of a custom tool


def tools_of(raw: list[Any] | None) -> list[dict[str, Any]]:
    """Return the tools on offer in OpenAI's chat format.

    Raises:
        Refusal: If a tool is no function of the agent's own, or is ill-formed.
    """
    return [_function(where, tool, space) for where, tool, space in _flattened(raw or [])]


def call_item(call: ToolCall, tools: list[Any] | None) -> dict[str, Any]:
    """Return a call as the item that its tool's kind asks for, without id and status."""
    fields: dict[str, Any] = {"call_id": call.id}
    for _, tool, space in _flattened(tools or []):
        if _name(tool["name"], space) != call.name:
            continue
        fields |= {"name": tool["name"]} | ({"namespace": space} if space else {})
        if tool["type"] == "custom" and (text := _custom_input(call.arguments)) is not None:
            return {"type": "custom_tool_call", **fields, "input": text}
        break
    return {"type": "function_call", "name": call.name, **fields, "arguments": call.arguments}


def call_of(item: Mapping[str, Any], where: str) -> ToolCall:
    """Return the call that an item holds.

    Raises:
        Refusal: If a field is wrong.
    """
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({_INPUT: string(item, "input", where)}, ensure_ascii=False)
    else:
        arguments = string(item, "arguments", where)
    return ToolCall(string(item, "call_id", where), _full_name(item, where), arguments)


def tool_choice_of(raw: str | Mapping[str, Any]) -> Any:
    """Return ``tool_choice`` as Chat Completions has it.

    Raises:
        Refusal: If the choice is not supported.
    """
    if raw in ("auto", "none", "required"):
        return raw
    if isinstance(raw, dict) and raw.get("type") in ("function", "custom"):
        return {"type": "function", "function": {"name": _full_name(raw, "tool_choice")}}
    raise Refusal(
        f"tool_choice must be auto, none, required or one function, got {raw!r}; to allow some "
        "tools only, offer only those",
        param="tool_choice",
    )


def _flattened(
    tools: Any, where: str = "tools", space: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
    """Yield each tool with its place and namespace."""
    for path, tool in entries(tools, where):
        if tool.get("type") == "namespace" and space is None:
            name = string(tool, "name", path)
            yield from _flattened(tool.get("tools") or [], f"{path}.tools", name)
        else:
            yield path, tool, space


def _function(where: str, tool: Mapping[str, Any], space: str | None) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        raise Refusal(
            f"{where}: the tool {kind!r} is OpenAI's own and does not exist here; take it out of "
            'the agent\'s tools (Codex: web_search = "disabled"), or offer a function instead',
            param=where,
        )
    name = _name(string(tool, "name", where), space)
    if kind == "function":
        return function_tool(tool, where, "parameters", name=name)
    form = tool.get("format")
    rule = form.get("definition") if isinstance(form, dict) else None
    text = {"type": "string", "description": f"Follows this grammar:\n{rule}"} if rule else {}
    schema = {
        "type": "object",
        "properties": {_INPUT: {"type": "string", **text}},
        "required": [_INPUT],
    }
    return function_tool({**tool, "parameters": schema}, where, "parameters", name=name)


def _full_name(raw: Mapping[str, Any], where: str) -> str:
    space = string(raw, "namespace", where) if raw.get("namespace") is not None else None
    return _name(string(raw, "name", where), space)


def _name(name: str, space: str | None) -> str:
    return f"{space}__{name}" if space else name


def _custom_input(arguments: str) -> str | None:
    """Return the text for a custom tool; None if the model did not write its one argument."""
    try:
        fields = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or list(fields) != [_INPUT]:
        return None
    text = fields[_INPUT]
    # Half a surrogate pair could not be sent.
    return text if isinstance(text, str) and writable(text) == text else None
