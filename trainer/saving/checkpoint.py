"""Checkpoints: written whole or not at all, and enough to go on exactly where they were taken."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from vf.traces.errors import ConfigError
from vf.trainer.learning.policy import Policy
from vf.trainer.learning.ranks import Load


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: Training steps done.
        cursor: Tasks drawn.
        seconds: Wall time spent so far.
        alarms: What the alarms remember (:meth:`~vf.trainer.watching.alarms.Alarms.state`).
    """

    step: int
    cursor: int
    seconds: float
    alarms: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, policy: Policy, tokenizer: Any, progress: Progress) -> Path:
    """Write ``folder/step-N`` and return it; a kill on the way leaves no half checkpoint.

    It holds the adapter or model with the tokenizer in Hugging Face's format (``model/``), and the
    exact trained parameters, optimizer, schedule and random states (``state.pt``).
    """
    target = folder / f"step-{progress.step}"
    if target.exists():
        return target
    temporary = folder / f".writing-{progress.step}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    policy.save(temporary / "model")
    tokenizer.save_pretrained(temporary / "model")
    state = {
        "parameters": policy.trainable_state(),
        "optimizer": policy.optimizer.state_dict(),
        "scheduler": policy.scheduler.state_dict(),
        "reference": policy.reference.state() if policy.reference is not None else None,
        "rng": {
            "torch": torch.get_rng_state(),
            "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
            "python": random.getstate(),
        },
    }
    torch.save(state, temporary / "state.pt")
    (temporary / "progress.json").write_text(json.dumps(asdict(progress)))
    for file in temporary.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    temporary.rename(target)
    return target


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a run, or None."""
    found = [path for path in folder.glob("step-*") if (path / "progress.json").is_file()]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def load_checkpoint(path: Path, policy: Policy) -> Progress:
    """Put a checkpoint's state into a policy, in place, and return where the run stood.

    On rank 0 it goes into the policies of all trainer processes.

    Raises:
        ConfigError: The checkpoint is unreadable, or of another model or adapter.
    """
    try:
        # Onto the CPU: on a device that this process does not train on it would only take memory.
        state: dict[str, Any] = torch.load(
            path / "state.pt", map_location="cpu", weights_only=False
        )
        progress = Progress(**json.loads((path / "progress.json").read_text()))
    except (OSError, ValueError, TypeError, RuntimeError, EOFError) as error:
        raise ConfigError(f"cannot read the checkpoint {path}: {error}") from error
    policy.load_trainable_state(state["parameters"])
    policy.optimizer.load_state_dict(state["optimizer"])
    policy.scheduler.load_state_dict(state["scheduler"])
    if policy.reference is not None:
        policy.reference.load_state(state.get("reference"))
    torch.set_rng_state(state["rng"]["torch"])
    if torch.cuda.is_available() and state["rng"]["cuda"]:
        torch.cuda.set_rng_state(state["rng"]["cuda"][0])
    random.setstate(state["rng"]["python"])
    if policy.ranks.rank == 0:
        policy.ranks.tell([Load(path)] * policy.ranks.count)
    return progress
