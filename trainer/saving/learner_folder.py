"""A checkpoint in its own folder, without a run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError
from vf.trainer.saving.checkpoint import (
    Progress,
    load_checkpoint,
    read_progress,
    save_checkpoint,
)
from vf.trainer.saving.checkpoint_files import is_complete
from vf.trainer.saving.export_source import find_checkpoint
from vf.trainer.tinker_backend.policy import AnyPolicy


def save_to(target: Path, policy: AnyPolicy, tokenizer: Any) -> None:
    """Write a checkpoint; one that is there already is replaced.

    Args:
        target: The folder of the checkpoint.
        policy: The policy to save.
        tokenizer: The tokenizer of the model.

    Raises:
        ConfigError: If the folder is something else.
        CheckpointError: If it could not be written; one that was there is whole.
    """
    if target.exists() and not is_complete(target):
        raise ConfigError(f"{target} exists and is no checkpoint; save to another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    progress = Progress(policy.optimizer_steps, 0.0, base=policy.weights.fingerprint)
    try:
        made = save_checkpoint(scratch, policy, tokenizer, progress)
        if target.exists():
            target.rename(scratch / "replaced")
        made.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def load_from(path: Path, policy: AnyPolicy) -> None:
    """Load a checkpoint into a policy.

    Args:
        path: The checkpoint's folder, or that of a run, whose newest checkpoint it then is.
        policy: Changed in place.

    Raises:
        ConfigError: If it is unreadable, or of another model or adapter.
    """
    checkpoint = find_checkpoint(path)
    base = read_progress(checkpoint).base
    if base and base != policy.weights.fingerprint:
        raise ConfigError(
            f"{checkpoint} is of another base model, or of one with other layers adapted"
        )
    load_checkpoint(checkpoint, policy)
