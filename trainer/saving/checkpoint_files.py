"""The checkpoints in a run's folder: which there are, which is the best, which are removed.

Importing this module loads no torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

from vf.runtime.errors import ConfigError
from vf.runtime.parse import parse_json
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.loop_args import LoopArgs

PROGRESS = "progress.json"  # written last: with it, a checkpoint is whole
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's
_TYPES: dict[str, Any] = {  # of what progress.json holds
    **dict.fromkeys(("step", "optimizer_steps"), int),
    **dict.fromkeys(("alarms", "queue"), dict),
    "seconds": int | float,
    "best_reward": int | float | None,
    "base": str,
    "rolling": bool,
}
BEST = "best"  # a link to the checkpoint with the highest held-out reward


def damaged(checkpoint: Path, file: str, error: BaseException) -> ConfigError:
    """Return the error that tells which file of a checkpoint cannot be read.

    Args:
        checkpoint: The checkpoint.
        file: The file, below it.
        error: The exception that reading it raised.
    """
    path = checkpoint / file
    if not path.exists():
        why = "it is missing"
    elif path.is_file() and not path.stat().st_size:
        why = "it is empty"
    else:
        reason = str(error) or "it ends too early" * isinstance(error, EOFError)
        why = reason or type(error).__name__
        if "weights_only" in why:  # torch's advice is to run what is in the file
            why = "it is damaged"
    step = int(number) if (number := checkpoint.name.removeprefix("step-")).isdecimal() else 0
    before = [path.name for path in _complete(checkpoint.parent) if step_of(path) < step]
    hint = f"; resume from the one before it with --from {before[-1]}" if before else ""
    return ConfigError(f"cannot read the checkpoint {checkpoint}: {file}: {why}{hint}")


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a run, or None."""
    complete = _complete(folder)
    return complete[-1] if complete else None


def is_complete(path: Path) -> bool:
    """Return whether a folder is a whole checkpoint."""
    progress = path / PROGRESS
    return progress.is_file() and progress.stat().st_size > 0


def named_checkpoint(folder: Path, name: str) -> Path:
    """Return the checkpoint of a run that was named, as ``step-20`` or ``20``.

    Raises:
        ConfigError: If there is none of that name; lists those that there are.
    """
    complete = {path.name: path for path in _complete(folder)}
    named = complete.get(name) or complete.get(f"step-{name}")
    if named is None:
        names = ", ".join(complete) or "none"
        raise ConfigError(f"--from {name}: {folder} has no such checkpoint; there are: {names}")
    return named


def set_aside_later(folder: Path, step: int) -> None:
    """Rename the checkpoints of later steps: they would be in the way of those to be written."""
    for path in sorted(folder.glob("step-*")):
        number = path.name.removeprefix("step-")
        if number.isdecimal() and int(number) > step:
            taken = len(list(folder.glob("superseded-*")))
            path.rename(folder / f"superseded-{taken + 1}-{path.name}")
    with suppress(OSError):
        if not (folder / BEST).exists():
            (folder / BEST).unlink(missing_ok=True)


def _complete(folder: Path) -> list[Path]:
    """Return a run's complete checkpoints, oldest first."""
    by_step = {
        int(number): path
        for path in folder.glob("step-*")
        if (number := path.name.removeprefix("step-")).isdecimal()  # not a user's copy
        and is_complete(path)
    }
    return [by_step[number] for number in sorted(by_step)]


def read_saved(checkpoint: Path) -> dict[str, Any]:
    """Return where the run stood at a checkpoint, as it was written.

    Raises:
        ConfigError: If it is unreadable.
    """
    try:
        saved: dict[str, Any] = parse_json((checkpoint / PROGRESS).read_text())
        if not isinstance(saved, dict):
            raise ValueError("it is not an object")
        for name in _TYPES.keys() & saved.keys():
            if not isinstance(saved[name], _TYPES[name]):
                raise ValueError(f"{name} is {shorten(repr(saved[name]), 80)}")
        return saved
    except (OSError, ValueError) as error:
        raise damaged(checkpoint, PROGRESS, error) from error


def finished(folder: RunFolder, args: LoopArgs) -> int | None:
    """Return after how many steps a run is finished; None if something is left to do.

    Args:
        folder: The run's.
        args: The run's ``[trainer.args]``.

    Raises:
        ConfigError: If its newest checkpoint is unreadable.
    """
    latest = latest_checkpoint(folder.checkpoints)
    if latest is None:
        return None
    step = step_of(latest)
    if step < args.max_steps or to_evaluate(folder, args, step) is not None:
        return None
    restore_best(folder.checkpoints, read_saved(latest).get("best_reward"))
    return step


def to_evaluate(folder: RunFolder, args: LoopArgs, step: int) -> Metrics | None:
    """Return the metrics of a finished step whose evaluation was interrupted, or is due by now."""
    lines = [line for line in folder.read_metrics() if line["step"] == step]
    missing = lines and "eval/reward/mean" not in lines[-1]
    return lines[-1] if args.evaluates_after(step) and missing else None


def mark_best(checkpoint: Path) -> None:
    """Point the link ``best`` beside a checkpoint to it."""
    link, temporary = checkpoint.parent / BEST, checkpoint.parent / ".best"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(checkpoint.name)
    temporary.replace(link)


def restore_best(folder: Path, reward: float | None) -> None:
    """Set the link ``best`` if the run was killed before it could; see :func:`find_best`."""
    if (best := find_best(folder, reward)) is not None:
        with suppress(OSError):  # not every file system has links
            mark_best(best)


def find_best(folder: Path, reward: float | None) -> Path | None:
    """Return the checkpoint whose held-out reward was the best, unless it was removed.

    Args:
        folder: The run's folder of checkpoints.
        reward: The best held-out reward; None if there was no evaluation.

    Raises:
        ConfigError: If a checkpoint is unreadable.
    """
    link = folder / BEST
    if reward is None or (link.is_symlink() and not link.exists()):
        return None
    for path in _complete(folder):
        if read_saved(path).get("best_reward") == reward:
            return path
    return None


def remove_old(folder: Path, limit: int, forget: Callable[[Path], None] | None = None) -> None:
    """Remove all but the newest checkpoint, the best, and the newest of those that are to stay.

    Args:
        folder: The run's folder of checkpoints.
        limit: The number that stay, not counting those that were saved by the clock.
        forget: A function that is called with each that is removed, before its files are.
    """
    complete = _complete(folder)
    staying = [path for path in complete if not _is_rolling(path)]
    kept = {*staying[-limit:], *complete[-1:], (folder / BEST).resolve()}
    for path in complete:
        if path not in kept and path.resolve() not in kept:
            doomed = folder / f".removing-{path.name}"
            path.rename(doomed)  # so that a kill leaves no half checkpoint
            if forget is not None:
                forget(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
    for left in folder.glob(".removing-*"):
        shutil.rmtree(left, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """Return after how many steps a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("step-"))


def _is_rolling(checkpoint: Path) -> bool:
    with suppress(ConfigError):
        return bool(read_saved(checkpoint).get("rolling"))
    return False
