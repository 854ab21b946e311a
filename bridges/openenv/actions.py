"""From a model's words or tool calls to an OpenEnv action, and from an observation to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vf.runtime.errors import ConfigError, ToolError, ToolFailure, did_you_mean
from vf.tools.tool_box import render_result

STEP = "step"  # the tool that an action is, if it is not a text
_BROKEN = ("timeout", "transport_error")  # of a tool's errors: not the model's doing


def action_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an action without the fields that are not for a model."""
    hidden = {"metadata"}
    properties = {
        name: {key: value for key, value in field.items() if key != "title"}
        for name, field in schema.get("properties", {}).items()
        if name not in hidden
    }
    kept = {key: schema[key] for key in ("$defs",) if key in schema}
    required = [name for name in schema.get("required", ()) if name not in hidden]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        **kept,
    }


def text_field(
    where: str, fields: Mapping[str, Any], requested: str | None, as_tool: bool
) -> str | None:
    """Return the field that a reply's text fills; None if actions are calls of a tool.

    Args:
        where: The server, for the errors.
        fields: The schema of :func:`action_fields`.
        requested: The requested field, if any.
        as_tool: Whether a tool was requested.

    Raises:
        ConfigError: If there is no such field, it holds no text, or others must be filled too.
    """
    properties, required = fields["properties"], set(fields["required"])
    if as_tool and requested is not None:
        raise ConfigError("openenv: text_field and as_tool exclude each other")
    texts = [name for name, schema in properties.items() if schema.get("type") == "string"]
    plain = [name for name in texts if "enum" not in properties[name]]
    if requested is None:
        # Only where nothing else could be meant.
        only = plain[0] if len(properties) == 1 and plain else None
        return None if as_tool else only
    if requested not in properties:
        raise ConfigError(
            f"openenv: {where}: an action has no field {requested!r}."
            f"{did_you_mean(requested, properties)} It has: {', '.join(properties)}"
        )
    if requested not in texts:
        raise ConfigError(f"openenv: {where}: the field {requested!r} of an action holds no text")
    if others := required - {requested}:
        raise ConfigError(
            f"openenv: {where}: an action needs {', '.join(sorted(others))} as well, so a reply's "
            "text is not enough: leave text_field out, and actions are calls of a tool"
        )
    return requested


def render_observation(observation: Mapping[str, Any]) -> str:
    """Return an observation as text: its only text as it is, or else a line per field.

    ``metadata`` and what is None are left out.
    """
    shown = {
        name: value
        for name, value in observation.items()
        if name not in ("metadata", "reward", "done") and value is not None
    }
    if len(shown) == 1 and isinstance(only := next(iter(shown.values())), str):
        return render_result(only)
    return "\n".join(f"{name}: {render_result(value)}" for name, value in shown.items())


def render_tool_result(observation: Mapping[str, Any]) -> str:
    """Return the result of an MCP environment's tool as text.

    Raises:
        ToolError: If the tool reports an error, which the model receives.
        ToolFailure: If the server could not run it.
    """
    error = observation.get("error")
    if isinstance(error, Mapping):
        message = str(error.get("message") or "the tool failed")
        if error.get("error_type") in _BROKEN:
            raise ToolFailure(f"openenv: the tool {observation.get('tool_name')!r}: {message}")
        raise ToolError(message)
    result = observation.get("result")
    if not isinstance(result, Mapping) or "content" not in result:
        return (
            render_observation(observation)
            if "result" not in observation
            else render_result(result)
        )
    parts = [
        str(part["text"])
        for part in result["content"] or ()
        if isinstance(part, Mapping) and part.get("type") == "text"
    ]
    text = render_result("\n".join(parts) if parts else result.get("data"))
    if result.get("is_error"):
        raise ToolError(text)
    return text
