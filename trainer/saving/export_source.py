"""The source of an export: which checkpoint it is, and what is known of its run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf.inference.model_files import Checkpoint, resolve_model
from vf.runtime.command import CONFIG, check_run_exists, runs_in
from vf.runtime.errors import ConfigError
from vf.runtime.parse import parse_toml
from vf.trainer.saving.checkpoint_files import ADAPTER_CONFIG, is_complete, latest_checkpoint
from vf.trainer.tinker_backend.record import check_is_local


def is_run(path: Path) -> bool:
    """Return whether a folder is a run's, or a checkpoint of one."""
    return is_complete(path) or (path / "checkpoints").is_dir()


def find_checkpoint(run: Path, which: str | None = None) -> Path:
    """Return a checkpoint's folder.

    Args:
        run: A run's folder, or a checkpoint's own.
        which: ``step-N``, ``best`` or ``last``; the last by default.

    Raises:
        ConfigError: If there is no such checkpoint.
    """
    check_run_exists(run)
    if is_complete(run):
        if which is not None:
            raise ConfigError(f"{run} is a checkpoint's folder; leave --checkpoint out")
        return run.resolve()
    folder = run / "checkpoints"
    if not folder.is_dir():
        if any(run.glob("*.safetensors")):
            raise ConfigError(
                f"{run} is a model or an adapter already, which transformers, PEFT and vLLM load"
            )
        if not (run / CONFIG).is_file():
            hint = runs_in(run) or "; name one, like runs/quickstart-1"
            raise ConfigError(f"{run} is neither a run's folder nor a whole checkpoint's{hint}")
    last = latest_checkpoint(folder) if folder.is_dir() else None
    if last is None:
        raise ConfigError(f"{run} has no checkpoint yet; a run writes one every save_steps")
    if which in (None, "last"):
        return last.resolve()
    named = folder / str(which)
    if named.parent == folder and is_complete(named):
        return named.resolve()
    names = [path.name for path in folder.glob("step-*") if is_complete(path)]
    there = f"there are: {', '.join(sorted(names, key=lambda name: (len(name), name)))}"
    if which == "best":
        raise ConfigError(
            f"--checkpoint best: {run} has no best checkpoint; a run keeps one by its held-out "
            f"evaluations (trainer.args.eval_strategy); {there}"
        )
    raise ConfigError(f"--checkpoint {which}: {run} has no such checkpoint; {there}")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint to export.

    Attributes:
        checkpoint: The checkpoint's folder.
        adapter: The config of its LoRA adapter, in PEFT's format; None if all weights were trained.
        base: What the adapter goes on top of, as an absolute folder or a hub name; without an
            adapter the checkpoint's own model.
        bf16: Whether the run held the base in bfloat16.
        template_args: The run's variables for the chat template.
        tool_style: How the run told the model of its tools.
    """

    checkpoint: Path
    adapter: dict[str, Any] | None
    base: str
    bf16: bool
    template_args: dict[str, Any]
    tool_style: str

    @property
    def model(self) -> Path:
        """The folder of the model or adapter, with the tokenizer."""
        return self.checkpoint / "model"

    @classmethod
    def read(cls, checkpoint: Path, base: str | None = None) -> Source:
        """Read everything but the weights.

        Args:
            checkpoint: The checkpoint's folder.
            base: The base model, if it is no longer where the run found it.

        Raises:
            ConfigError: If the checkpoint is damaged, or the base cannot be found.
        """
        check_is_local(
            checkpoint,
            "download them with `tinker checkpoint download`; of a server that `vf-rl serve "
            "--train` runs, they are a PEFT folder below its --folder",
        )
        model, settings = checkpoint / "model", _settings(checkpoint)
        adapter = _adapter_config(model) if (model / ADAPTER_CONFIG).is_file() else None
        if adapter is not None:
            recorded = settings.get("model") or adapter.get("base_model_name_or_path")
            base = _find_base(str(base or recorded))
        elif not (model / "config.json").is_file():
            raise ConfigError(f"the checkpoint {checkpoint} is damaged: it holds no model")
        elif base is not None:
            raise ConfigError(
                f"--base: {checkpoint} is of a run that trained all weights, so it needs no base; "
                "leave it out"
            )
        return cls(
            checkpoint,
            adapter,
            base or str(model),
            bool(settings.get("trainer", {}).get("args", {}).get("bf16", False)),
            settings.get("inference", {}).get("template_args", {}),
            settings.get("inference", {}).get("tool_style", "template"),
        )


def _settings(checkpoint: Path) -> dict[str, Any]:
    """Return the run's config as written; empty for a checkpoint without its run's folder."""
    path = checkpoint.parent.parent / "config.toml"
    if checkpoint.parent.name != "checkpoints" or not path.is_file():
        return {}
    try:
        # Not validated: a run of an older version, whose settings have changed since, exports too.
        return parse_toml(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _adapter_config(model: Path) -> dict[str, Any]:
    path = model / ADAPTER_CONFIG
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        int(config["r"])
        return config
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read the adapter's config {path}: {error!r}") from error


def _find_base(name: str) -> str:
    try:
        base = Checkpoint.find(name)
    except ConfigError as error:
        raise ConfigError(
            f"the adapter's base cannot be found: {error}. Name it with --base"
        ) from error
    if base.adapter is not None:
        raise ConfigError(f"--base {name} is itself an adapter; name a whole model")
    path = Path(resolve_model(base.base)).expanduser()
    return str(path.absolute()) if path.is_dir() else base.base
