"""From a TOML file to a :class:`Config`, with errors that name the key, the value and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from vf.environments.locate import absolute
from vf.inference.settings import EmbeddedArgs, EmbeddedSettings, VllmSettings
from vf.runtime.errors import ConfigError
from vf.runtime.toml import checked, override, read_toml
from vf.trainer.settings.config import Config, TrainerArgs

DEFAULTS = TrainerArgs.model_fields
# What users of other trainers call our settings.
SYNONYMS = {
    "adam_epsilon": "eps",
    "adv_estimator": "advantage",
    "beta": "kl_penalty_coef",
    "group_size": "rollouts_per_example",
    "kl_coef": "kl_penalty_coef",
    "loss_top_k": "teacher_top_k",
    "loss_type": "loss_fn",
    "mask_truncated_completions": "mask_truncated",
    "num_batches_ahead": "max_steps_off_policy",
    "num_generations": "rollouts_per_example",
    "num_generations_eval": "eval_rollouts_per_example",
    "per_device_train_batch_size": "micro_batch_size",
    "rank": "lora_rank",
    "ref_model_mixup_alpha": "reference_update_rate",
    "ref_model_sync_steps": "reference_update_steps",
    "rollout_is": "importance_sampling_mode",
    "rollout_is_threshold": "importance_sampling_clip_max",
    "tis_clip": "importance_sampling_clip_max",
    "topk_logits_k": "teacher_top_k",
    "vllm_importance_sampling_cap": "importance_sampling_clip_max",
    "vllm_importance_sampling_clip_max": "importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min": "importance_sampling_clip_min",
    "vllm_importance_sampling_mode": "importance_sampling_mode",
}
# What others call a setting's value.
VALUES = {
    "advantage": {"leave_one_out": "rloo", "grpo": "mean_std"},
    "importance_sampling_mode": {"token": "token_truncate", "sequence": "sequence_truncate"},
    "teacher_loss": {"forward_kl_topk": "forward_kl"},
}


def load_config(path: Path, overrides: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """Read a TOML file.

    Args:
        path: The file. The relative path of an environment's file begins at its folder.
        overrides: ``key=value`` pairs, with relative paths from the working directory. A bare
            name belongs to ``[trainer.args]``; the value is parsed as TOML, or else is text.

    Returns:
        The config, and a note for each synonym that was replaced and for settings of the engine
        that is not used, which are left aside.

    Raises:
        ConfigError: If the file is missing or not TOML, or a key or value is wrong. All problems
            are listed.
    """
    try:
        raw = read_toml(path)
    except ConfigError:
        _check_tables(path)
        raise
    if {"environments", "models"} & raw.keys() and not {"env", "trainer"} & raw.keys():
        raise ConfigError(
            f"{path} has the settings of an evaluation, which is started by: vf-rl eval {path}"
        )
    _locate(raw, path.absolute().parent)
    for_vllm = _engine(raw) == "vllm"
    for assignment in overrides:
        override(raw, assignment, _path)
    _locate(raw, Path.cwd())
    return parse_config(raw, for_vllm=for_vllm)


def _check_tables(path: Path) -> None:
    """Say what is wrong with a file that has both kinds of table for its environments.

    Raises:
        ConfigError: If the file has both.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace") if path.is_file() else ""
    lines = {
        line.strip().replace(" ", ""): number for number, line in enumerate(text.splitlines(), 1)
    }
    present = {
        kind: next((n for line, n in lines.items() if line.startswith(kind)), None)
        for kind in ("[env]", "[[env]]")
    }
    if None not in present.values():
        raise ConfigError(
            f"{path}: [env] in line {present['[env]']} is the only environment of a run, and "
            f"[[env]] in line {present['[[env]]']} one of several; write [[env]] for each"
        )


def _locate(raw: dict[str, Any], folder: Path) -> None:
    """Make the path of an environment's file absolute: a resumed run may be started elsewhere."""
    envs = raw.get("env")
    for env in envs if isinstance(envs, list) else [envs]:
        if not isinstance(env, dict):
            continue
        for key in ("id", "curriculum"):
            if isinstance(env.get(key), str):
                env[key] = absolute(env[key], folder)


def parse_config(raw: dict[str, Any], *, for_vllm: bool = False) -> tuple[Config, list[str]]:
    """Check a config given as nested dicts; see :func:`load_config`.

    Args:
        raw: The config.
        for_vllm: Whether it was written for a vLLM server, whatever its engine is now.
    """
    _follow_backend(raw)
    notes = _translate(raw) + _leave_aside(raw, for_vllm) + _count_gpus(raw)
    return checked(Config, raw), notes


def _engine(raw: dict[str, Any]) -> Any:
    table = raw.get("inference")
    return table.get("engine", "embedded") if isinstance(table, dict) else "embedded"


def _follow_backend(raw: dict[str, Any]) -> None:
    """Have the server of ``trainer.backend = "tinker"`` sample, unless an engine is named."""
    trainer, table = raw.get("trainer"), raw.get("inference", {})
    if isinstance(trainer, dict) and trainer.get("backend") == "tinker" and isinstance(table, dict):
        raw["inference"] = {"engine": "tinker"} | table


def _leave_aside(raw: dict[str, Any], for_vllm: bool) -> list[str]:
    """Remove the other engine's settings from ``[inference]``, so that one TOML serves both.

    vLLM's flags are any names. So an argument that the embedded engine does not know is one of
    them where the table is for vLLM too, unless it looks like a misspelt argument.

    Raises:
        ConfigError: If the table has settings of a vLLM server, and names no engine.
    """
    table, engine = raw.get("inference"), _engine(raw)
    if isinstance(table, dict) and engine == "tinker" and "args" in table:
        raw["inference"] = {name: value for name, value in table.items() if name != "args"}
        return ['left aside, as trainer.backend = "tinker" has a server sample: inference.args']
    if not isinstance(table, dict) or engine not in ("embedded", "vllm"):
        return []
    theirs: set[str] = set()
    if engine == "embedded":
        theirs = VllmSettings.model_fields.keys() - EmbeddedSettings.model_fields.keys()
    left = sorted(f"inference.{name}" for name in theirs & table.keys())
    if left and "engine" not in table:
        raise ConfigError(f'{left[0]} is for a vLLM server: set inference.engine = "vllm", too')
    raw["inference"] = kept = {name: value for name, value in table.items() if name not in theirs}
    if isinstance(args := kept.get("args"), dict):
        own_fields = EmbeddedArgs.model_fields
        if engine == "vllm":
            others = [name for name in args if name in own_fields]
        elif for_vllm or left:
            others = [
                name for name in args if name not in own_fields and not _near(name, own_fields)
            ]
        else:
            others = []
        left += [f"inference.args.{name}" for name in others]
        kept["args"] = {name: value for name, value in args.items() if name not in others}
    if not left:
        return []
    other = "vllm" if engine == "embedded" else "embedded"
    return [
        f"left aside, as they are for inference.engine = {other!r} and this is {engine!r}: "
        f"{', '.join(left)}"
    ]


def _count_gpus(raw: dict[str, Any]) -> list[str]:
    """Replace a number of GPUs in ``[inference]``, where their numbers are meant to stand.

    Raises:
        ConfigError: If the servers cannot share the GPUs equally.
    """
    table = raw.get("inference")
    if not isinstance(table, dict) or not _is_count(count := table.get("gpus")):
        return []
    servers, per_replica = table.get("replicas", 1), table.get("gpus_per_replica")
    if not _is_count(servers) or not (per_replica is None or _is_count(per_replica)):
        return []  # that is the error
    update: dict[str, int] = {}
    if per_replica is None and count % servers == 0:
        update = {"gpus_per_replica": count // servers}
    elif per_replica is not None and "replicas" not in table and count % per_replica == 0:
        update = {"replicas": count // per_replica}
    elif per_replica is None or count != servers * per_replica:
        size = f" of gpus_per_replica = {per_replica}" if per_replica is not None else ""
        raise ConfigError(
            f"inference.gpus = {count} is a number of GPUs, and not which, and inference.replicas "
            f"= {servers}{size} cannot share {count} equally: change one of them"
        )
    del table["gpus"]
    table.update(update)
    return [f"inference.gpus = {count} was understood as {k} = {n}" for k, n in update.items()]


def _near(name: str, names: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(name, [*names], n=1, cutoff=0.85))


def overridden(overrides: Sequence[str]) -> set[str]:
    """Return the dotted names of the settings that overrides set; synonyms are replaced."""
    names = set()
    for assignment in overrides:
        *table, key = _path(assignment.partition("=")[0])
        names.add(".".join([*table, SYNONYMS.get(key, key)]))
    return names


def _path(key: str) -> list[str]:
    path = key.strip().split(".")
    bare = len(path) == 1 and path[0] not in Config.model_fields
    return ["trainer", "args", *path] if bare else path


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
    return notes + _switch(args) + _multiply(args, raw["trainer"].get("gpus"))


def _switch(args: dict[str, Any]) -> list[str]:
    """Replace TRL's switch for what is a mode here, and say so."""
    theirs, ours = "vllm_importance_sampling_correction", "importance_sampling_mode"
    if not isinstance(args.get(theirs), bool):
        return []
    if args.pop(theirs):
        mode = args.setdefault(ours, "sequence_mask")  # TRL's own default
    else:
        mode = args[ours] = "off"
        args.pop("importance_sampling_clip_max", None)
        args.pop("importance_sampling_clip_min", None)
    return [f"trainer.args.{theirs} was understood as {ours} = {mode!r}"]


def _multiply(args: dict[str, Any], gpus: Any) -> list[str]:
    """Replace what others say of the batch's size by ``batch_size``.

    Raises:
        ConfigError: If it cannot be known, or ``batch_size`` says something else.
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
                "trainer.args.gradient_accumulation_steps has no counterpart here: it follows "
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
