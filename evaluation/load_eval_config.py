"""From a TOML file and the command line to an :class:`EvalConfig`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from vf.evaluation.eval_config import EvalConfig
from vf.runtime.errors import ConfigError, did_you_mean

SYNONYMS = {
    "num_tasks": "tasks",
    "rollouts": "rollouts_per_example",
    "concurrency": "max_concurrent",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's content.

    Raises:
        ConfigError: It is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def parse_config(raw: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> EvalConfig:
    """Check an evaluation's settings.

    Args:
        raw: What the TOML says, or the like of it.
        overrides: Settings of the command line, which replace those of the same name; tables are
            merged.

    Raises:
        ConfigError: A key or value is wrong. All problems are listed.
    """
    merged = dict(raw)
    for theirs, ours in SYNONYMS.items():
        if theirs in merged:
            if ours in merged:
                raise ConfigError(f"{theirs} and {ours} are the same setting; keep {ours}")
            merged[ours] = merged.pop(theirs)
    for key, value in (overrides or {}).items():
        before = merged.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
    try:
        return EvalConfig.model_validate(merged)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ConfigError("\n".join(explain(EvalConfig, problem) for problem in problems)) from None


def explain(root: type[BaseModel], problem: Any) -> str:
    """Return one problem that pydantic found, with the key, the value, and the nearest name."""
    loc = tuple(problem["loc"])
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)[1:]
    fields = _fields_at(root, loc[:-1])
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(str(loc[-1]), fields)
        return f"{where}: unknown key.{hint} Known here: {', '.join(fields)}"
    field = fields.get(str(loc[-1])) if loc else None
    description = (field.description or "") if field else ""
    if problem["type"] == "missing":
        return f"{where}: missing. {description}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} = {problem['input']!r}: {message}. {description}".rstrip()


def _fields_at(root: type[BaseModel], path: tuple[Any, ...]) -> dict[str, FieldInfo]:
    """Return the settings of the table at this path."""
    model: type[BaseModel] | None = root
    for depth, part in enumerate(path):
        if isinstance(part, int) or (depth and path[depth - 1] == "prices"):
            continue  # an entry of a list, or of a table by name, is of the kind found before it
        field = model.model_fields.get(part) if model else None
        model = _table(field.annotation) if field else None
    return model.model_fields if model else {}


def _table(kind: Any) -> type[BaseModel] | None:
    """Return the kind of table inside an annotation, say ``list[Table]``."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for each in get_args(kind) if (found := _table(each))), None)
