"""Runs and their checkpoints in a folder: ``RUN/weights/NAME`` and ``RUN/sampler_weights/NAME``.

A checkpoint is written beside its place, synced to the disk, and renamed, so that it is whole or
not there. It is a PEFT folder; one of ``weights`` has the optimizer's state beside it. All tensors
are safetensors: reading a checkpoint runs no code.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from vf.runtime.durable import sync
from vf.runtime.errors import ConfigError
from vf.trainer.saving.checkpoint_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS

Kind = Literal["weights", "sampler_weights"]
KINDS: dict[str, str] = {"weights": "training", "sampler_weights": "sampler"}
SCHEME = "tinker://"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+=@-]{0,199}")
OPTIMIZER, INFO, RUN = "optimizer.safetensors", "checkpoint.json", "run.json"
METRICS = "metrics.jsonl"  # of a run, for the page of `vf-rl view`
LOCK = ".lock"  # held by the server that uses the folder


class NotFound(ConfigError):
    """There is no such run or checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointPath:
    """Where a checkpoint is.

    Attributes:
        run: The run.
        kind: Whether it is to be trained on or sampled from.
        name: The checkpoint's name.
    """

    run: str
    kind: Kind
    name: str

    @classmethod
    def parse(cls, path: str) -> CheckpointPath:
        """Read ``tinker://RUN/weights/NAME`` or ``tinker://RUN/sampler_weights/NAME``.

        Raises:
            ConfigError: If it is neither.
        """
        parts = path.removeprefix(SCHEME).split("/")
        if not path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in KINDS:
            raise ConfigError(
                f"path {path[:200]!r}: must be {SCHEME}RUN/weights/NAME or "
                f"{SCHEME}RUN/sampler_weights/NAME"
            )
        check_name(parts[0], "path")
        check_name(parts[2], "path")
        return cls(parts[0], parts[1], parts[2])  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{SCHEME}{self.run}/{self.kind}/{self.name}"


def check_name(name: str, field: str) -> None:
    """See that a name is one of a file, and of nothing outside of its folder.

    Raises:
        ConfigError: If it is not.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{field}: the name {name[:200]!r} must be 1 to 200 letters, digits and any of _ . : + "
            "= @ -, and begin with a letter, a digit or _"
        )


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What is known of a checkpoint.

    Attributes:
        base_model: What the model is called that it is an adapter of.
        fingerprint: A short hash of that model: another has another.
        shape: Its rank, and what it adapts.
        steps: Optimizer steps that were taken.
        time: When it was written, in seconds since 1970.
        expires_at: When it is deleted; None for never.
        user_metadata: The client's.
    """

    base_model: str
    fingerprint: str
    shape: dict[str, Any]
    steps: int
    time: float
    expires_at: float | None = None
    user_metadata: dict[str, str] | None = None


class Checkpoints:
    """The runs and checkpoints of one folder.

    Args:
        folder: The folder that holds them, made if it is missing.

    Raises:
        ConfigError: If it cannot be written to, or another server uses it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / LOCK).open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--folder {folder}: another server uses it; name another") from None
        except OSError as error:
            raise ConfigError(f"--folder {folder}: cannot write there: {error.strerror}") from error
        for left in folder.glob("*/*/.*"):  # of a server that was killed
            self._recover(left)

    def close(self) -> None:
        """Let another server use the folder."""
        self._lock.close()

    def save(
        self,
        path: CheckpointPath,
        info: CheckpointInfo,
        peft_config: dict[str, Any],
        weights: dict[str, Any],
        moments: dict[str, Any] | None,
        *,
        overwrite: bool,
    ) -> None:
        """Write a checkpoint.

        Args:
            path: The path to save to.
            info: The facts about it.
            peft_config: PEFT's config of the adapter.
            weights: The adapter's tensors by PEFT's names.
            moments: The optimizer's; None for a checkpoint that is only sampled from.
            overwrite: Whether it may replace one of that name.

        Raises:
            ConfigError: If there is one of that name, and ``overwrite`` is false.
            OSError: If it cannot be written; what was there is whole.
        """
        from safetensors.torch import save_file

        target = self._at(path)
        if not overwrite and self._is_there(path):
            raise ConfigError(f"{path}: there is such a checkpoint; overwrite=True replaces it")
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            whole = scratch / "whole"
            whole.mkdir()
            save_file(weights, whole / ADAPTER_WEIGHTS)
            (whole / ADAPTER_CONFIG).write_text(json.dumps(peft_config, indent=1))
            if moments is not None:
                save_file(moments, whole / OPTIMIZER)
            (whole / INFO).write_text(json.dumps(asdict(info)))
            for file in whole.iterdir():
                sync(file)
            sync(whole)
            if target.exists():
                target.rename(scratch / "replaced")
            whole.rename(target)
            sync(target.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def info(self, path: CheckpointPath) -> CheckpointInfo:
        """Return what is known of a checkpoint.

        Raises:
            NotFound: If there is none.
        """
        if not self._is_there(path):
            raise NotFound(f"{path}: there is no such checkpoint")
        return self._read(self._at(path))

    def weights(self, path: CheckpointPath) -> tuple[CheckpointInfo, dict[str, Any]]:
        """Return a checkpoint's adapter by PEFT's names.

        Raises:
            NotFound: If there is none.
        """
        return self.info(path), _tensors(self._at(path) / ADAPTER_WEIGHTS)

    def moments(self, path: CheckpointPath) -> dict[str, Any]:
        """Return a checkpoint's optimizer's state.

        Raises:
            ConfigError: If it has none.
        """
        file = self._at(path) / OPTIMIZER
        if not file.exists():
            raise ConfigError(
                f"{path}: it was saved for sampling and has no optimizer's state; load it without, "
                "or one of save_state"
            )
        return _tensors(file)

    def files(self, path: CheckpointPath) -> list[Path]:
        """Return the files of a checkpoint as PEFT reads it.

        Raises:
            NotFound: If there is none.
        """
        self.info(path)
        return [self._at(path) / name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]

    def delete(self, path: CheckpointPath) -> None:
        """Delete a checkpoint.

        Raises:
            NotFound: If there is none.
        """
        self.info(path)
        gone = Path(tempfile.mkdtemp(prefix=".", dir=self._at(path).parent))
        self._at(path).rename(gone / "deleted")
        shutil.rmtree(gone, ignore_errors=True)

    def expire(self, path: CheckpointPath, seconds: int | None) -> None:
        """Have a checkpoint deleted after so many seconds; None keeps it.

        Raises:
            NotFound: If there is none.
        """
        info = asdict(self.info(path))
        info["expires_at"] = None if seconds is None else time.time() + seconds
        _replace(self._at(path) / INFO, info)

    def listed(self, run: str | None = None) -> list[dict[str, Any]]:
        """Return the checkpoints of a run or of all, newest first, as the API describes them."""
        dated = []
        for path in self._paths(run):
            info = self._read(self._at(path))
            size = sum(file.stat().st_size for file in self._at(path).iterdir())
            dated.append((info.time, _described(path, info, size)))
        return [entry for _, entry in sorted(dated, key=lambda pair: pair[0], reverse=True)]

    def open_run(self, run: str, about: dict[str, Any]) -> None:
        """Keep what is known of a run."""
        folder = self.folder / run
        folder.mkdir(exist_ok=True)
        _replace(folder / RUN, about)

    def log_step(self, run: str, metrics: dict[str, float]) -> None:
        """Add a line to a run's metrics, for `vf-rl view`; a disk that is full loses the line."""
        with suppress(OSError), (self.folder / run / METRICS).open("a") as file:
            file.write(f"{json.dumps(metrics)}\n")

    def close_run(self, run: str) -> None:
        """Forget a run that has no checkpoint."""
        if next(self._paths(run), None) is None:
            shutil.rmtree(self.folder / run, ignore_errors=True)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each run."""
        return {
            file.parent.name: json.loads(file.read_text())
            for file in sorted(self.folder.glob(f"*/{RUN}"))
        }

    def _recover(self, scratch: Path) -> None:
        """Remove what a killed server left; put a checkpoint in its place if that is empty."""
        target = scratch.parent / scratch.name[1:].rpartition("-")[0]
        if (scratch / "replaced").exists() and not target.exists():
            (scratch / "whole").rename(target)
        shutil.rmtree(scratch, ignore_errors=True)

    def _paths(self, run: str | None) -> Iterator[CheckpointPath]:
        for kind in KINDS:
            for file in sorted(self.folder.glob(f"{run or '*'}/{kind}/*/{INFO}")):
                folder = file.parent
                path = CheckpointPath(folder.parent.parent.name, kind, folder.name)  # type: ignore[arg-type]
                if self._is_there(path):
                    yield path

    def _is_there(self, path: CheckpointPath) -> bool:
        folder = self._at(path)
        if not (folder / INFO).exists():
            return False
        expires = self._read(folder).expires_at
        if expires is not None and expires <= time.time():
            shutil.rmtree(folder, ignore_errors=True)
            return False
        return True

    def _at(self, path: CheckpointPath) -> Path:
        return self.folder / path.run / path.kind / path.name

    def _read(self, folder: Path) -> CheckpointInfo:
        try:
            return CheckpointInfo(**json.loads((folder / INFO).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{folder / INFO} cannot be read: {error}") from error


def _described(path: CheckpointPath, info: CheckpointInfo, size: int) -> dict[str, Any]:
    expires = None if info.expires_at is None else when(info.expires_at)
    return {
        "checkpoint_id": f"{path.kind}/{path.name}",
        "checkpoint_type": KINDS[path.kind],
        "time": when(info.time),
        "tinker_path": str(path),
        "size_bytes": size,
        "public": False,
        "user_metadata": info.user_metadata,
        "expires_at": expires,
    }


def when(seconds: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _tensors(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _replace(file: Path, content: dict[str, Any]) -> None:
    handle, name = tempfile.mkstemp(prefix=".", dir=file.parent)
    with os.fdopen(handle, "w") as scratch:
        json.dump(content, scratch)
        scratch.flush()
        os.fsync(scratch.fileno())
    os.replace(name, file)
