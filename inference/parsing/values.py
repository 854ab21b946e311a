"""Reads argument values that a form writes as bare text, by the tool's schema.

``5`` may be a number or the text of one: only the schema knows. If it does not say, valid JSON is
decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vf.traces.tools import refuse_constant

# The JSON schema of a tool's arguments, by the tool's name; empty if it is not known.
Schemas = Callable[[str], Mapping[str, Any]]

_PYTHON = {"True": True, "False": False, "None": None}  # as Jinja's `string` filter writes them
_KINDS = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_MAX_DEPTH = 8  # of references and unions in a schema


def parameter_schemas(tools: Iterable[Mapping[str, Any]]) -> Schemas:
    """Return the lookup of tools' argument schemas. Nothing is read before a name is looked up.

    Args:
        tools: The tools in OpenAI's format. Those without a name or parameters are passed over.
    """

    def schema_of(name: str) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = {}
        for tool in tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and function.get("name") == name:
                parameters = function.get("parameters")
                schema = parameters if isinstance(parameters, Mapping) else schema
        return schema

    return schema_of


def read_value(text: str, parameter: str, schema: Mapping[str, Any]) -> Any:
    """Read a value that was written as bare text.

    Args:
        text: The value: text as it is, anything else as JSON (or as Python's True, False, None).
        parameter: The name of the parameter.
        schema: JSON schema of all the tool's arguments; empty if it is not known.

    Returns:
        The text itself if the schema wants text or the text does not decode; otherwise the decoded
        value, even if the schema does not allow it: the environment validates arguments.
    """
    properties = schema.get("properties")
    declared = properties.get(parameter) if isinstance(properties, Mapping) else None
    kinds = _kinds(declared, schema, _MAX_DEPTH)
    if kinds == frozenset({"string"}):
        return text
    try:
        value = _decode(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str):  # the quotes belong to the text: bare text needs none
        return text
    fits = kinds is None or "string" not in kinds or _kind(value) in kinds
    return value if fits else text


def _decode(text: str) -> Any:
    bare = text.strip()
    return _PYTHON[bare] if bare in _PYTHON else json.loads(bare, parse_constant=refuse_constant)


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null" if value is None else "string")


def _kinds(schema: object, root: Mapping[str, Any], depth: int) -> frozenset[str] | None:
    """Return the JSON types that a schema allows, None if it does not say."""
    if not isinstance(schema, Mapping) or depth < 0:
        return None
    if isinstance(schema.get("$ref"), str):
        return _kinds(_resolve(schema["$ref"], root), root, depth - 1)
    if "const" in schema:
        return _with_integers([_kind(schema["const"])])
    if isinstance(schema.get("enum"), list):
        return _with_integers(_kind(value) for value in schema["enum"])
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            options = [_kinds(option, root, depth - 1) for option in schema[union]]
            stated = [kinds for kinds in options if kinds is not None]
            return frozenset().union(*stated) if len(stated) == len(options) else None
    if isinstance(schema.get("allOf"), list):
        parts = (_kinds(part, root, depth - 1) for part in schema["allOf"])
        return next((kinds for kinds in parts if kinds is not None), None)
    declared = schema.get("type")
    if isinstance(declared, str):
        return _with_integers([declared])
    if isinstance(declared, list):
        return _with_integers(str(kind) for kind in declared)
    return None


def _with_integers(kinds: Iterable[str]) -> frozenset[str]:
    stated = frozenset(kinds)
    return stated | {"integer"} if "number" in stated else stated


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    node: object = root
    for key in reference.removeprefix("#/").split("/"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node
