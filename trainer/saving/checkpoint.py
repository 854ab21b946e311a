"""Checkpoints: written whole or not at all, with all that an exact resume needs."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from vf.runtime.errors import CheckpointError, ConfigError
from vf.traces.store import TraceStore
from vf.trainer.collecting.orchestrator import Queue
from vf.trainer.learning.policy import Policy
from vf.trainer.learning.ranks import Load
from vf.trainer.settings.config import Config
from vf.trainer.settings.write_config import to_toml

BEST = "best"  # a link to the checkpoint with the highest held-out reward


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: Training steps done.
        seconds: Wall time spent so far.
        alarms: What the alarms remember (:meth:`~vf.trainer.watching.alarms.Alarms.state`).
        best_reward: Highest held-out mean reward of any checkpoint so far.
        base: Fingerprint of the weights that are not trained
            (:class:`~vf.trainer.learning.weights.Weights`).
        queue: Rollouts that were ahead of training; their traces are in a file of their own.
    """

    step: int
    seconds: float
    alarms: dict[str, Any] = field(default_factory=dict)
    best_reward: float | None = None
    base: str = ""
    queue: Queue = field(default_factory=lambda: Queue({"position": 0, "rests_through": {}}))


def save_checkpoint(
    folder: Path, policy: Policy, tokenizer: Any, progress: Progress, config: Config | None = None
) -> Path:
    """Write ``folder/step-N`` and return it; a kill never leaves half a checkpoint.

    It holds the adapter or model with the tokenizer in Hugging Face's format (``model/``), the
    exact trained parameters, optimizer and random states (``state.pt``), the run's
    settings (``config.toml``) and the rollouts that are ahead (``rollouts.jsonl``).

    Args:
        folder: The run's folder of checkpoints.
        policy: What is saved.
        tokenizer: Of the model.
        progress: Where the run stands.
        config: The run's settings; left out if None.

    Raises:
        CheckpointError: It could not be written, as on a full disk; nothing of it is left.
    """
    target = folder / f"step-{progress.step}"
    if is_complete(target):
        return target
    temporary = folder / f".writing-{progress.step}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        policy.weights.save(temporary / "model")
        tokenizer.save_pretrained(temporary / "model")
        torch.save(_state(policy), temporary / "state.pt")
        if config is not None:
            (temporary / "config.toml").write_text(to_toml(config))
        with TraceStore(temporary / "rollouts.jsonl") as store:
            for trace in progress.queue.traces:
                store.append(trace)
        saved = {entry.name: getattr(progress, entry.name) for entry in fields(progress)}
        saved["queue"] = {"cursor": progress.queue.cursor, "steps": progress.queue.steps}
        (temporary / "progress.json").write_text(json.dumps(saved))
        for file in temporary.rglob("*"):
            _sync(file)
        temporary.rename(target)
        _sync(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"the checkpoint {target} could not be written: {error}") from error
    return target


def mark_best(checkpoint: Path) -> None:
    """Point the link ``best`` beside a checkpoint to it."""
    link, temporary = checkpoint.parent / BEST, checkpoint.parent / ".best"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(checkpoint.name)
    temporary.replace(link)


def find_best(folder: Path, reward: float | None) -> Path | None:
    """Return the checkpoint whose held-out reward was the best, unless it was removed.

    Args:
        folder: The run's folder of checkpoints.
        reward: That reward; None if there was no evaluation.

    Raises:
        ConfigError: A checkpoint is unreadable.
    """
    link = folder / BEST
    if reward is None or (link.is_symlink() and not link.exists()):
        return None
    for path in _complete(folder):
        with _readable(path):
            if json.loads((path / "progress.json").read_text()).get("best_reward") == reward:
                return path
    return None


def remove_old(folder: Path, limit: int) -> None:
    """Remove all but the newest checkpoints and the best."""
    best = (folder / BEST).resolve()
    for path in _complete(folder)[:-limit]:
        if path.resolve() != best:
            doomed = folder / f".removing-{path.name}"
            path.rename(doomed)  # so that a kill leaves no half checkpoint
            shutil.rmtree(doomed, ignore_errors=True)
    for left in folder.glob(".removing-*"):
        shutil.rmtree(left, ignore_errors=True)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a run, or None."""
    found = _complete(folder)
    return found[-1] if found else None


def read_progress(path: Path) -> Progress:
    """Return where the run stood at a checkpoint.

    Raises:
        ConfigError: It is unreadable.
    """
    with _readable(path):
        saved = json.loads((path / "progress.json").read_text())
        rollouts = path / "rollouts.jsonl"
        traces = list(TraceStore(rollouts)) if rollouts.exists() else []
        return Progress(**saved | {"queue": Queue(**saved["queue"], traces=traces)})


def load_checkpoint(path: Path, policy: Policy) -> None:
    """Load a checkpoint's state into a policy, in place.

    What a setting decides, such as the learning rate, is not part of it.

    On rank 0 it is loaded into the policies of all trainer processes.

    Raises:
        ConfigError: The checkpoint is unreadable, or of another model or adapter.
    """
    with _readable(path):
        # To the CPU: it may have been saved from a device that this process does not train on.
        state: dict[str, Any] = torch.load(
            path / "state.pt", map_location="cpu", weights_only=False
        )
        step: int = json.loads((path / "progress.json").read_text())["step"]
    policy.weights.load_trainable_state(state["parameters"])
    policy.load_optimizer_state(state["optimizer"])
    policy.optimizer_steps = state["optimizer_steps"]
    policy.position = step * policy.args.updates_per_step
    if policy.reference is not None:
        policy.reference.load_state(state.get("reference"))
    torch.set_rng_state(state["rng"]["torch"])
    if torch.cuda.is_available() and state["rng"]["cuda"]:
        torch.cuda.set_rng_state(state["rng"]["cuda"][0])
    random.setstate(state["rng"]["python"])
    if policy.ranks.rank == 0:
        policy.ranks.tell([Load(path)] * policy.ranks.count)
        policy.ranks.joined()


def _state(policy: Policy) -> dict[str, Any]:
    return {
        "parameters": policy.weights.trainable_state(),
        "optimizer": policy.optimizer_state(),
        "optimizer_steps": policy.optimizer_steps,
        "reference": policy.reference_state(),
        "rng": {
            "torch": torch.get_rng_state(),
            "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
            "python": random.getstate(),
        },
    }


def _complete(folder: Path) -> list[Path]:
    """Return a run's complete checkpoints, oldest first."""
    found = {
        int(number): path
        for path in folder.glob("step-*")
        if (number := path.name.removeprefix("step-")).isdecimal()  # not a user's copy
        and is_complete(path)
    }
    return [found[number] for number in sorted(found)]


def is_complete(path: Path) -> bool:
    """Return whether a folder is a whole checkpoint."""
    return (path / "progress.json").is_file()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        raise ConfigError(f"cannot read the checkpoint {path}: {error}") from error
