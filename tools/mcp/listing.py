"""What an MCP server lists as its tools, checked before any model sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vf.runtime.errors import ConfigError, did_you_mean
from vf.tools.json_schema import faults, validator

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what the chat APIs take as a tool's name


@dataclass(frozen=True)
class ListedTool:
    """One tool of a server.

    Attributes:
        name: What the model calls it by.
        remote: What the server calls it.
        description: What the server says of it.
        parameters: JSON schema of its arguments.
        arguments: Validator of its arguments.
        result: Validator of its structured results; None where any will do.
    """

    name: str
    remote: str
    description: str
    parameters: dict[str, Any]
    arguments: Any
    result: Any

    def fault(self, arguments: dict[str, Any]) -> str:
        """Say what is wrong with arguments, for the model; ``""`` if nothing is."""
        return faults(self.arguments, arguments)


def select(
    listed: Sequence[dict[str, Any]],
    *,
    include: Sequence[str] | None,
    exclude: Sequence[str],
    prefix: str,
    where: str,
) -> list[ListedTool]:
    """Return the tools that are selected, checked.

    Args:
        listed: All tools of the server, as they are in the protocol.
        include: Names of those that are selected; None for all.
        exclude: Names of those that are not.
        prefix: Put before every name.
        where: The server, for the errors.

    Raises:
        ConfigError: If a requested name is missing or listed twice, no tool is left, or one
            has a name or a schema that cannot be used.
    """
    names = [tool["name"] for tool in listed]
    for name in [*(include or ()), *exclude]:
        if name not in names:
            raise ConfigError(
                f"{where} has no tool {name!r}.{did_you_mean(name, names)} "
                f"It has: {', '.join(names) or 'none'}"
            )
    selected = [
        tool
        for tool in listed
        if (include is None or tool["name"] in include) and tool["name"] not in exclude
    ]
    if not selected:
        raise ConfigError(f"{where} offers no tools, or all of them are excluded")
    tools = [_checked(tool, prefix, where) for tool in selected]
    for tool in tools:
        if sum(other.remote == tool.remote for other in tools) > 1:
            raise ConfigError(
                f"{where} lists two tools {tool.remote!r}; exclude it, or fix the server"
            )
    return tools


def _checked(tool: dict[str, Any], prefix: str, where: str) -> ListedTool:
    remote, schema = tool["name"], tool["inputSchema"]
    name = prefix + remote
    label = f"{where}: tool {remote!r}"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{label}: {name!r} cannot be a tool's name (1 to 64 letters, digits, _ and -); "
            "exclude it, or rename it on the server"
        )
    if schema.get("type") != "object":
        raise ConfigError(
            f"{label}: its inputSchema must be of type 'object', and is of {schema.get('type')!r}; "
            "exclude it, or fix the server"
        )
    output = tool.get("outputSchema")
    return ListedTool(
        name=name,
        remote=remote,
        description=(tool.get("description") or tool.get("title") or "").strip(),
        parameters=schema,
        arguments=validator(schema, "mcp", f"{label}: its inputSchema"),
        result=None if output is None else validator(output, "mcp", f"{label}: its outputSchema"),
    )


def text_of(result: dict[str, Any]) -> str:
    """Return a tool's result as text: what is not text is described in brackets.

    Args:
        result: The result, as in the protocol.
    """
    parts = [_text_of(block) for block in result.get("content", ())]
    if not parts and "structuredContent" in result:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return "\n".join(parts)


def _text_of(block: dict[str, Any]) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource", "resource": {"text": str(text), "uri": uri}}:
            return f"[resource {uri}]\n{text}"
        case {"type": "resource", "resource": {"uri": uri}} | {"type": "resource_link", "uri": uri}:
            return f"[resource {uri}, not shown]"
        case {"type": kind, "mimeType": mime}:
            return f"[{kind} of type {mime}, not shown]"
    return f"[{block.get('type', 'content')}, not shown]"
