"""From a TOML file to a :class:`Config`, with errors that name the key, the value and the fix."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from vf.traces.errors import ConfigError
from vf.traces.suggest import did_you_mean
from vf.trainer.config import Config, TrainerArgs

# What users of other trainers call our settings.
SYNONYMS = {
    "group_size": "rollouts_per_example",
    "num_generations": "rollouts_per_example",
    "per_device_train_batch_size": "micro_batch_size",
    "rank": "lora_rank",
}


def load_config(path: Path, overrides: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """Read a TOML file.

    Args:
        path: The file.
        overrides: ``key=value`` pairs. A bare name means ``[trainer.args]``; the value is TOML,
            or else text.

    Returns:
        The config, and a note for each synonym that was understood.

    Raises:
        ConfigError: The file is missing or not TOML, or a key or value is wrong. All problems
            are listed.
    """
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for override in overrides:
        _override(raw, override)
    return parse_config(raw)


def parse_config(raw: dict[str, Any]) -> tuple[Config, list[str]]:
    """Check a config given as nested dicts; see :func:`load_config`."""
    notes = _translate(raw)
    try:
        return Config.model_validate(raw), notes
    except ValidationError as error:
        lines = [_explain(problem) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from None


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: must be of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    path = key.strip().split(".")
    if len(path) == 1 and (path[0] in TrainerArgs.model_fields or path[0] in SYNONYMS):
        path = ["trainer", "args", path[0]]
    table = raw
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override!r}: {part!r} is not a table")
    table[path[-1]] = value


def _translate(raw: dict[str, Any]) -> list[str]:
    """Replace synonyms in ``[trainer.args]``, and say so once for each."""
    trainer = raw.get("trainer")
    args = trainer.get("args") if isinstance(trainer, dict) else None
    if not isinstance(args, dict):
        return []
    notes = []
    for theirs in [key for key in args if key in SYNONYMS]:
        ours = SYNONYMS[theirs]
        if ours in args:
            raise ConfigError(
                f"trainer.args: {theirs} and {ours} are the same setting; keep {ours}"
            )
        args[ours] = args.pop(theirs)
        notes.append(f"trainer.args.{theirs} is called {ours} here; it was understood as that")
    return notes


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *path, key = [str(part) for part in problem["loc"]]
        known = _fields(path)
        return f"{where}: unknown key.{did_you_mean(key, known)} Known here: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{where}: missing. {_description(problem['loc'])}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {message}"
    return f"{where} = {problem['input']!r}: {message}. {_description(problem['loc'])}"


def _model_at(path: Sequence[str]) -> type[BaseModel] | None:
    model: type[BaseModel] = Config
    for part in path:
        field = model.model_fields.get(part)
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not nested:
            return None
        model = nested[0]
    return model


def _fields(path: Sequence[str]) -> list[str]:
    model = _model_at(path)
    return list(model.model_fields) if model else []


def _description(loc: Sequence[str | int]) -> str:
    path = [str(part) for part in loc]
    model = _model_at(path[:-1]) if path else None
    field = model.model_fields.get(path[-1]) if model else None
    return (field.description or "") if field else ""
