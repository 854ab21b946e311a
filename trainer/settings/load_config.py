"""From a TOML file to a :class:`Config`, with errors that name the key, the value and the fix."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from vf.runtime.errors import ConfigError, did_you_mean
from vf.trainer.settings.config import ENGINES, Config, TrainerArgs

DEFAULTS = TrainerArgs.model_fields
# What users of other trainers call our settings.
SYNONYMS = {
    "adam_epsilon": "eps",
    "beta": "kl_penalty_coef",
    "group_size": "rollouts_per_example",
    "kl_coef": "kl_penalty_coef",
    "mask_truncated_completions": "mask_truncated",
    "num_batches_ahead": "max_steps_off_policy",
    "num_generations": "rollouts_per_example",
    "per_device_train_batch_size": "micro_batch_size",
    "rank": "lora_rank",
}
# Those that are ours only together with another setting.
PRODUCTS = ("groups_per_batch", "gradient_accumulation_steps")
# What others call a setting's value.
VALUES = {"advantage": {"leave_one_out": "rloo"}}


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
    for each in overrides:
        override(raw, each, _path)
    return parse_config(raw)


def parse_config(raw: dict[str, Any]) -> tuple[Config, list[str]]:
    """Check a config given as nested dicts; see :func:`load_config`."""
    notes = _translate(raw)
    try:
        return Config.model_validate(raw), notes
    except ValidationError as error:
        lines = [_explain(problem) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from None


def overridden(overrides: Sequence[str]) -> set[str]:
    """Return the dotted names of the settings that overrides set, by our names for them."""
    names = set()
    for override in overrides:
        *table, key = _path(override.partition("=")[0])
        names.add(".".join([*table, SYNONYMS.get(key, key)]))
    return names


def _path(key: str) -> list[str]:
    path = key.strip().split(".")
    if len(path) == 1 and path[0] in {*DEFAULTS, *SYNONYMS, *PRODUCTS}:
        return ["trainer", "args", path[0]]
    return path


def override(raw: dict[str, Any], setting: str, where: Callable[[str], list[str]]) -> None:
    """Put one ``--set`` into a config given as nested dicts.

    Args:
        raw: The config; it is changed.
        setting: ``key=value``; the value is TOML, or else text.
        where: Returns the names of the tables down to a key, and the key's own.

    Raises:
        ConfigError: It is not of that form, or leads through what is no table.
    """
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting!r}: must be of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    path = where(key)
    table = raw
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {setting!r}: {part!r} is not a table")
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
    for key, names in VALUES.items():
        value = args.get(key)
        if isinstance(value, str) and value in names:
            args[key] = names[value]
            notes.append(
                f"trainer.args.{key} = {value!r} is called {names[value]!r} here; it was "
                "understood as that"
            )
    return notes + _multiply(args, raw["trainer"].get("gpus"))


def _multiply(args: dict[str, Any], gpus: Any) -> list[str]:
    """Replace what others say of the batch's size by ``batch_size``.

    Raises:
        ConfigError: It cannot be known, or ``batch_size`` says something else.
    """
    notes = []
    per_group = args.get("rollouts_per_example", DEFAULTS["rollouts_per_example"].default)
    if _is_count(groups := args.get("groups_per_batch")) and _is_count(per_group):
        why = f"{groups} groups of rollouts_per_example = {per_group}"
        notes.append(_resize(args, "groups_per_batch", groups * per_group, why))
    if _is_count(passes := args.get("gradient_accumulation_steps")):
        rows = args.get("micro_batch_size")
        if "batch_size" in args:
            del args["gradient_accumulation_steps"]
            notes.append(
                "trainer.args.gradient_accumulation_steps has no counterpart here, for it follows "
                "from batch_size and the micro-batches; it was left out"
            )
        elif _is_count(rows):
            devices = len(gpus) if isinstance(gpus, list) else gpus if _is_count(gpus) else 1
            why = f"micro_batch_size = {rows} × {passes} passes × {devices} devices"
            size = rows * passes * devices
            notes.append(_resize(args, "gradient_accumulation_steps", size, why))
        else:
            raise ConfigError(
                "trainer.args.gradient_accumulation_steps: here the whole of batch_size is one "
                "step, and micro-batches are cut by micro_batch_tokens; set batch_size, the "
                "rollouts in a step"
            )
    return notes


def _resize(args: dict[str, Any], theirs: str, size: int, why: str) -> str:
    del args[theirs]
    if args.setdefault("batch_size", size) != size:
        raise ConfigError(
            f"trainer.args: {theirs} means batch_size = {size} ({why}), but batch_size = "
            f"{args['batch_size']!r}; keep batch_size"
        )
    return f"trainer.args.{theirs} was understood as batch_size = {size} rollouts ({why})"


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _explain(problem: Any) -> str:
    loc = tuple(str(part) for part in problem["loc"])
    # Pydantic names the engine that it chose after "inference", where the TOML has no such table.
    where = ".".join(loc[:1] + loc[2:] if loc[:1] == ("inference",) else loc)
    if problem["type"] == "union_tag_invalid":
        given = problem["ctx"]["tag"]
        hint = did_you_mean(given, list(ENGINES))
        return f"inference.engine = {given!r}: no such engine.{hint} Known: {', '.join(ENGINES)}"
    if problem["type"] == "extra_forbidden":
        known = list(_fields_at(loc[:-1]))
        hint = did_you_mean(loc[-1], known)
        return f"{where}: unknown key.{hint} Known here: {', '.join(known)}"
    field = _fields_at(loc[:-1]).get(loc[-1]) if loc else None
    description = (field.description or "") if field else ""
    if problem["type"] == "missing":
        return f"{where}: missing. {description}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {message}"
    return f"{where} = {problem['input']!r}: {message}. {description}"


def _fields_at(path: Sequence[str]) -> dict[str, FieldInfo]:
    """Return the settings of the table that pydantic knows by this path."""
    model: type[BaseModel] | None = Config
    for depth, part in enumerate(path):
        if path[:depth] == ("inference",):
            model = ENGINES.get(part)
        elif part != "inference" or depth:
            field = model.model_fields.get(part) if model else None
            kinds = [field.annotation, *get_args(field.annotation)] if field else []
            nested = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
            model = nested[0] if nested else None
    return model.model_fields if model else {}
