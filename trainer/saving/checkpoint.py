"""Checkpoints: written whole or not at all, with all that an exact resume needs."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from vf.runtime.durable import sync
from vf.runtime.errors import CheckpointError, ConfigError, InfrastructureError
from vf.traces.image_files import keep_images
from vf.traces.store import DamagedLine, TraceStore
from vf.trainer.collecting.orchestrator import Queue
from vf.trainer.learning.policy import Policy
from vf.trainer.learning.sharding.checkpoint_shards import Stored, stage, write
from vf.trainer.learning.sharding.rank_commands import Load, Save
from vf.trainer.saving.checkpoint_files import (
    PROGRESS,
    damaged,
    is_complete,
    read_saved,
)
from vf.trainer.settings.config import Config
from vf.trainer.settings.write_config import to_toml
from vf.trainer.tinker_backend.policy import AnyPolicy, TinkerPolicy
from vf.trainer.tinker_backend.record import check_is_local

Value = TypeVar("Value")

STATE, ROLLOUTS, RANDOM = "state", "rollouts.jsonl", "random.pt"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: Training steps done.
        seconds: Wall time spent so far.
        alarms: What the alarms remember (:meth:`~vf.trainer.watching.alarms.RunAlarms.state`).
        best_reward: Highest held-out mean reward of any checkpoint so far.
        base: Fingerprint of the weights that are not trained
            (:class:`~vf.trainer.learning.sharding.weights.Weights`).
        rolling: Whether it was saved by the clock, to be kept only until the next checkpoint.
        queue: Rollouts that were ahead of training; their traces are in a file of their own.
    """

    step: int
    seconds: float
    alarms: dict[str, Any] = field(default_factory=dict)
    best_reward: float | None = None
    base: str = ""
    rolling: bool = False
    queue: Queue = field(default_factory=lambda: Queue({}))


def begin_checkpoint(
    folder: Path,
    policy: AnyPolicy,
    tokenizer: Any,
    progress: Progress,
    config: Config | None = None,
    *,
    alone: bool = False,
    then: Callable[[Path], None] = lambda checkpoint: None,
) -> Future[Path]:
    """Begin to write ``folder/step-N``; what changes is copied first, so training may continue.

    It holds the adapter or model with the tokenizer in Hugging Face's format (``model/``), the
    exact trained parameters and the optimizer's state, in parts (``state/``), or where a server of
    the Tinker API has them (``tinker.json``), the random states
    (``random.pt``), the run's settings (``config.toml``) and the rollouts that are ahead
    (``rollouts.jsonl``). It gets its name when all of it is on the disk, so a kill never leaves
    half a checkpoint. Wait for one before you begin another.

    Args:
        folder: The run's folder of checkpoints.
        policy: The policy to save. Each trainer process writes its part.
        tokenizer: The tokenizer of the model.
        progress: The state of the run.
        config: The run's settings; left out if None.
        alone: Write without the other processes, which may be gone; for a model that is not
            sharded.
        then: Called with the checkpoint once it is written, from the thread that wrote it.

    Returns:
        The checkpoint's folder, once it is there. Or the CheckpointError that says why it could not
        be written, as on a full disk; nothing of it is left then.

    Raises:
        CheckpointError: If writing could not even begin.
        TrainingError: If another trainer process is gone.
    """
    target, temporary = folder / f"step-{progress.step}", folder / f".writing-{progress.step}"
    if is_complete(target):
        return in_background(lambda: target)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    except OSError as error:
        raise _unwritten(target, error) from error
    if isinstance(policy, TinkerPolicy):
        write_weights = policy.begin_save(target.name)
    else:
        write_weights = _copied(policy, temporary / STATE, alone=alone)
    random_states = _random_states()
    queue, texts = progress.queue, {}
    texts[ROLLOUTS] = b"".join(trace.to_json() + b"\n" for trace in queue.traces)
    images = [image for trace in queue.traces for image in trace.held_images]
    if config is not None:
        texts["config.toml"] = to_toml(config).encode()
    saved = {entry.name: getattr(progress, entry.name) for entry in fields(progress)}
    saved["queue"] = {"cursor": queue.cursor, "steps": queue.steps, "traces": len(queue.traces)}
    saved["optimizer_steps"] = policy.optimizer_steps
    texts[PROGRESS] = json.dumps(saved).encode()

    def finish() -> Path:
        try:
            write_weights(temporary)
            tokenizer.save_pretrained(temporary / "model")
            torch.save(random_states, temporary / RANDOM)
            for name, text in texts.items():
                (temporary / name).write_bytes(text)
            keep_images(images, temporary)
            for file in temporary.rglob("*"):
                sync(file)
            temporary.rename(target)
            sync(folder)
        except (OSError, RuntimeError, SafetensorError, InfrastructureError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise _unwritten(target, error) from error
        then(target)
        return target

    return in_background(finish)


def _copied(policy: Policy, state: Path, *, alone: bool) -> Callable[[Path], None]:
    """Copy what training changes, and return what writes it into the checkpoint's folder."""
    ranks = policy.ranks
    if alone or ranks.count == 1:
        staged, group = stage(policy.states()), None
    else:
        ranks.tell([Save(state)] * ranks.count)
        staged, group = stage(policy.states(), ranks.rank, ranks.count), ranks.savers
        ranks.joined()
    weights = policy.weights.snapshot()

    def write_weights(folder: Path) -> None:
        write(folder / STATE, staged, group)
        policy.weights.save(folder / "model", state=weights)

    return write_weights


def begin_part(folder: Path, policy: Policy) -> Future[None]:
    """Begin to write this process's part of a checkpoint that rank 0 writes (:class:`Save`)."""
    ranks = policy.ranks
    staged = stage(policy.states(), ranks.rank, ranks.count)
    return in_background(lambda: write(folder, staged, ranks.savers))


def save_checkpoint(
    folder: Path,
    policy: AnyPolicy,
    tokenizer: Any,
    progress: Progress,
    config: Config | None = None,
) -> Path:
    """Write a checkpoint, wait until it is on the disk, and return its folder.

    See :func:`begin_checkpoint`.

    Raises:
        CheckpointError: If it could not be written; nothing of it is left.
    """
    return begin_checkpoint(folder, policy, tokenizer, progress, config).result()


def in_background(work: Callable[[], Value]) -> Future[Value]:
    """Run something in a thread of its own, which the process waits for before it exits."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="vf-checkpoint")
    running = thread.submit(work)
    thread.shutdown(wait=False)
    return running


def read_progress(path: Path) -> Progress:
    """Return where the run stood at a checkpoint.

    Raises:
        ConfigError: If it is unreadable.
    """
    saved = read_saved(path)
    rollouts = path / ROLLOUTS
    with _readable(path, ROLLOUTS):
        if rollouts.is_dir():
            raise ValueError("it is a folder")
        traces = list(TraceStore(rollouts)) if rollouts.exists() else []
        count = saved.get("queue", {}).pop("traces", len(traces))  # earlier versions did not count
        if count != len(traces):
            raise ValueError(f"it holds {len(traces)} rollouts of {count}")
        for image in (image for trace in traces for image in trace.held_images):
            image.data = image.read()  # a later checkpoint may take the place of this one
    with _readable(path, PROGRESS):
        saved.pop("optimizer_steps", None)  # the policy's
        queue = Queue(**saved["queue"], traces=traces, version=saved["step"])
        return Progress(**saved | {"queue": queue})


def load_checkpoint(path: Path, policy: AnyPolicy) -> None:
    """Load a checkpoint's state into a policy, in place.

    What a setting decides, such as the learning rate, is not part of it.

    On rank 0 it is loaded into the policies of all trainer processes, each of which reads its part.

    Raises:
        ConfigError: If the checkpoint is unreadable, or of another model or adapter.
    """
    if isinstance(policy, TinkerPolicy):
        policy.load(path)
    else:
        check_is_local(path, 'resume with trainer.backend = "tinker"')
        stored = open_tensors(path)
        with _readable(path, stored.short_file or STATE):
            policy.load_states(stored)
    with _readable(path, PROGRESS):
        progress = read_saved(path)
        policy.optimizer_steps = progress["optimizer_steps"]
        policy.position = progress["step"] * policy.args.updates_per_step
    with _readable(path, RANDOM):
        states = torch.load(path / RANDOM, map_location="cpu", weights_only=True)
        torch.set_rng_state(states["torch"])
        if torch.cuda.is_available() and states["cuda"] is not None:
            torch.cuda.set_rng_state(states["cuda"])
        random.setstate(states["python"])
    if policy.ranks.rank == 0:
        policy.ranks.tell([Load(path)] * policy.ranks.count)
        policy.ranks.joined()


def open_tensors(path: Path) -> Stored:
    """Return the tensors of a checkpoint, to be read.

    Raises:
        ConfigError: If they are unreadable, or in the format of an earlier version.
    """
    if (path / "state.pt").exists():
        raise ConfigError(
            f"the checkpoint {path} is in the format of an earlier version of vf-rl (state.pt), "
            "which this one cannot read: resume it with that version, or begin a new run from "
            f"what it learned, with the model that `vf-rl export {path}` writes"
        )
    with _readable(path, f"{STATE}/.metadata"):
        return Stored(path / STATE)


def _random_states() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
    }


def _unwritten(target: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"the checkpoint {target} could not be written: {error}")


@contextmanager
def _readable(path: Path, file: str) -> Iterator[None]:
    """Say which file of a checkpoint is damaged, where reading it fails."""
    try:
        yield
    except DamagedLine as error:  # leaving it out, as its own message offers, would lose a rollout
        raise damaged(path, file, ValueError(error.problem)) from error
    except ConfigError:  # it is of another model, or says already which file it is
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        raise damaged(path, file, error) from error
