"""An outcome that checks JSON against a schema."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vf.rubrics.outcomes.extract import (
    Extract,
    checked_extract,
    json_text,
    read_json,
    stated_answers,
)
from vf.runtime.errors import ConfigError, RubricError, ScoringDied
from vf.runtime.process_pool import run_bounded
from vf.traces.trace import Trace


def json_schema(
    schema: Mapping[str, Any] | str = "schema",
    *,
    compare: bool = False,
    timeout: float = 3.0,
    extract: Extract = json_text,
) -> Callable[[Trace], Awaitable[float]]:
    """1 if the answer is JSON that fits a schema (and, with ``compare``, equals ``task.answer``).

    A schema with regular expressions is checked in another process: some expressions would take
    forever on a malicious answer, and such an answer is worth 0. References to other documents are
    never fetched.

    Range: 0 or 1.

    Formula: 1 if every stated answer is valid JSON without doubled keys and valid under the
    schema (and equal to ``task.answer``); else 0.

    Source: JSON Schema, draft 2020-12 unless ``$schema`` names another
    (https://json-schema.org/draft/2020-12).

    Known ways to game it: without ``compare`` the smallest value that the schema accepts earns
    everything, so require what matters (``required``, ``minLength``, ``additionalProperties:
    false``) or use it as a gate next to an outcome that reads the values.

    Args:
        schema: The schema, or the key of ``task.info`` that holds each task's own.
        compare: Whether the value must equal ``task.answer``, too.
        timeout: Seconds of processor time for checking a schema with regular expressions.
        extract: Finds the stated answers in the last message; JSON, bare or fenced, by default.

    Raises:
        ConfigError: If the schema is not one, ``timeout`` is not positive, or ``jsonschema`` is not
            installed.
        RubricError: (when scoring) ``task.info`` holds no schema, or ``task.answer`` is not JSON.
    """
    if not timeout > 0:
        raise ConfigError(f"json_schema: timeout must be positive, got {timeout}")
    extract = checked_extract(extract, "json_schema")
    _library()
    if not isinstance(schema, str):
        problem = schema_problem(schema)
        if problem:
            raise ConfigError(f"json_schema: this is not a JSON schema: {problem}")

    async def json_schema(trace: Trace) -> float:
        task_schema: Any = trace.task.info.get(schema) if isinstance(schema, str) else schema
        problem = schema_problem(task_schema) if isinstance(schema, str) else None
        if problem:
            raise RubricError(
                f"'json_schema': task.info[{schema!r}] of task {trace.task.id!r} is not a JSON "
                f"schema: {problem}; put one there, or pass schema={{...}}"
            )
        texts = stated_answers(extract, trace)
        try:
            values = [read_json(text) for text in texts]
        except ValueError:
            return 0.0
        if not values or (compare and any(not _equal(v, trace) for v in values)):
            return 0.0
        if not _has_patterns(task_schema):
            return float(_fits(task_schema, texts))
        try:
            return float(await run_bounded(_fits, task_schema, texts, timeout=timeout))
        except ScoringDied:
            return 0.0

    return json_schema


def schema_problem(schema: object) -> str | None:
    """Return what is wrong with a JSON schema; None if nothing is."""
    jsonschema = _library()
    if not isinstance(schema, Mapping):
        return f"it is a {type(schema).__name__}, not an object"
    try:
        jsonschema.validators.validator_for(
            schema, default=jsonschema.Draft202012Validator
        ).check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        return f"{where}: {error.message}" if where else str(error.message)
    return None


def _library() -> Any:
    try:
        import jsonschema
    except ImportError:
        raise ConfigError(
            "json_schema needs the package jsonschema: pip install 'vf-rl[rubrics]'"
        ) from None
    return jsonschema


def _fits(schema: Mapping[str, Any], texts: list[str]) -> bool:
    """Return whether all of these are JSON that fits; what is too deep or too large does not."""
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, registry=Registry())  # an empty one: nothing is ever fetched
    try:
        return all(validator.is_valid(read_json(text)) for text in texts)
    except Unresolvable as error:
        raise RubricError(f"'json_schema': the schema refers to {error.ref!r}, unknown") from None
    except (RecursionError, OverflowError, ValueError):  # of the value: the schema is one
        return False


def _has_patterns(schema: object) -> bool:
    if isinstance(schema, Mapping):
        return (
            "pattern" in schema
            or "patternProperties" in schema
            or any(map(_has_patterns, schema.values()))
        )
    return isinstance(schema, list) and any(map(_has_patterns, schema))


def _equal(value: object, trace: Trace) -> bool:
    """Compare as JSON: neither 1.0 nor true is 1, and the order of keys does not matter."""
    try:
        golden = json.dumps(trace.task.answer, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RubricError(
            f"'json_schema': the answer of task {trace.task.id!r} is not JSON: {error}"
        ) from error
    return json.dumps(value, sort_keys=True) == golden
