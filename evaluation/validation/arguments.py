"""Random arguments that fit a tool's JSON schema."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

_WORDS = ("alpha", "7", "list", "the north", "x", "hello world", "2 + 2", "none", "-1", "a/b.txt")
_MAX_DEPTH = 4


def random_arguments(
    parameters: Mapping[str, Any], rng: random.Random, fill: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return arguments for one call.

    Args:
        parameters: The tool's schema, an object's.
        rng: The source of randomness.
        fill: Texts for text parameters, by the parameter's name; the others are random.
    """
    arguments = {}
    for name, schema in parameters.get("properties", {}).items():
        if name not in parameters.get("required", ()) and rng.random() < 0.5:
            continue
        text = (fill or {}).get(name)
        value = _value(schema, rng, parameters.get("$defs", {}), 0)
        arguments[name] = text if text is not None and isinstance(value, str) else value
    return arguments


def _value(schema: Any, rng: random.Random, defs: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _value(defs.get(str(schema["$ref"]).rsplit("/", 1)[-1]), rng, defs, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(list(schema["enum"]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _value(rng.choice(list(schema[several])), rng, defs, depth + 1)
    match schema.get("type"):
        case "integer":
            return rng.randint(*_bounds(schema))
        case "number":
            return round(rng.uniform(*_bounds(schema)), 2)
        case "boolean":
            return rng.random() < 0.5
        case "array":
            length = rng.randint(schema.get("minItems", 0), schema.get("minItems", 0) + 2)
            return [_value(schema.get("items"), rng, defs, depth + 1) for _ in range(length)]
        case "object":
            return random_arguments({"$defs": defs, **schema}, rng)
        case "null":
            return None
    return rng.choice(_WORDS)


def _bounds(schema: Mapping[str, Any]) -> tuple[int, int]:
    low = int(schema.get("minimum", schema.get("exclusiveMinimum", -100) + 1))
    high = int(schema.get("maximum", schema.get("exclusiveMaximum", low + 201) - 1))
    return low, max(low, high)
