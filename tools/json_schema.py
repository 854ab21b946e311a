"""JSON schemas that come from elsewhere, and what is wrong with values by them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vf.runtime.errors import ConfigError
from vf.runtime.extras import load

_VALUES = ("default", "const", "enum", "examples")  # of a schema: not schemas themselves
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_MOST_FAULTS = 3  # in one message to the model
_LONGEST_FAULT = 300  # characters


def validator(schema: Mapping[str, Any], extra: str, name: str) -> Any:
    """Return a validator of a schema that refers to nothing but itself.

    Args:
        schema: The JSON schema.
        extra: The extra of vf-rl that installs the package that checks.
        name: Name of the schema in errors.

    Raises:
        ConfigError: If the schema is none, or refers to something that is not in it.
    """
    validators: Any = load("jsonschema.validators", extra)
    exceptions: Any = load("jsonschema.exceptions", extra)
    referencing: Any = load("referencing", extra)
    specifications: Any = load("referencing.jsonschema", extra)
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
        resource = referencing.Resource.from_contents(
            schema, default_specification=specifications.DRAFT202012
        )
        root = resource.id() or ""
        resolver = referencing.Registry().with_resource(root, resource).resolver(root)
        for part in _schemas(schema):
            if "$ref" in part:
                resolver.lookup(part["$ref"])
            if "pattern" in part:
                re.compile(part["pattern"])
    except (
        exceptions.SchemaError,
        referencing.exceptions.Unresolvable,
        re.error,
        RecursionError,
        ValueError,
    ) as error:
        reason = str(getattr(error, "message", error)).partition("\n")[0]
        raise ConfigError(
            f"{name} is not a JSON schema that can be used: {_short(reason)}. Exclude the tool, or "
            "fix the server"
        ) from error
    return kind(schema, registry=referencing.Registry())


def _schemas(schema: object) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
    if isinstance(schema, list):
        for item in schema:
            yield from _schemas(item)
    elif isinstance(schema, dict):
        yield {key: schema[key] for key in ("$ref", "pattern") if isinstance(schema.get(key), str)}
        for key, value in schema.items():
            if key in _NAMED and isinstance(value, dict):  # by names that mean nothing here
                yield from _schemas(list(value.values()))
            elif key not in _VALUES:
                yield from _schemas(value)


def faults(validator: Any, value: object) -> str:
    """Say what is wrong with a value by a JSON schema; ``""`` if nothing is."""
    errors = sorted(validator.iter_errors(value), key=lambda error: error.json_path)
    lines = [
        f"{'.'.join(map(str, error.absolute_path)) or 'arguments'}: {_short(error.message)}"
        for error in errors[:_MOST_FAULTS]
    ]
    return "; ".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_FAULT else f"{text[:_LONGEST_FAULT]}..."
