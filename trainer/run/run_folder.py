"""A run's folder: where everything that a run writes is kept."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from vf.runtime.durable import append_lines
from vf.runtime.errors import ConfigError
from vf.runtime.parse import parse_json
from vf.runtime.visible import VisibleFormatter
from vf.traces.learned import FOLDER
from vf.traces.store import TraceStore
from vf.trainer.run.metrics import Metrics
from vf.trainer.settings.shared import SharedArgs

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_OF_TRAINER = ("vf", "py.warnings")
_OF_INFERENCE = ("transformers", "uvicorn", "vf.inference.embedded")
_OF_ENVIRONMENT = ("vf.environments",)


class _Run(Protocol):
    @property
    def args(self) -> SharedArgs: ...


def choose_folder(config: _Run, stem: str) -> Path:
    """Return the folder of a new run, without making it.

    Raises:
        ConfigError: If ``run_name`` names a run that exists.
    """
    parent, name = Path(config.args.output_dir), config.args.run_name
    if name is not None:
        folder = parent / name
        if os.path.lexists(folder):
            raise ConfigError(
                f"trainer.args.run_name = {name!r}: {folder} exists and is never overwritten; "
                f"choose another name, or continue it with --resume {folder}"
            )
        return folder
    stem, number = re.sub(r"[^\w.-]", "-", stem), 1
    while os.path.lexists(parent / f"{stem}-{number}"):
        number += 1
    return parent / f"{stem}-{number}"


def make_folder(config: _Run, stem: str) -> RunFolder:
    """Make the folder of a new run; of runs that start together, each gets its own.

    Raises:
        ConfigError: If ``run_name`` names a run that exists, or the folder cannot be made.
    """
    while True:
        folder = RunFolder(choose_folder(config, stem))
        try:
            folder.create()
            return folder
        except FileExistsError:  # another run was faster: take the next name
            continue


class RunFolder:
    """The files of one run.

    Attributes:
        path: ``runs/<name>``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.traces = path / "traces"
        self.learned = path / FOLDER
        self.checkpoints = path / "checkpoints"
        self.report = path / "report.html"
        self.logs = path / "logs"
        self.trainer_log = self.logs / "trainer.log"
        self.inference_log = self.logs / "inference.log"
        self.stalls = self.logs / "stalls.log"
        self.environment_log = self.logs / "environment.log"
        self.profiles = path / "profile"
        self._lock: IO[str] | None = None

    def create(self) -> None:
        """Make the folder.

        Raises:
            FileExistsError: If the folder exists.
            ConfigError: If the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True)
            self.open()
        except FileExistsError:
            raise
        except OSError as error:
            raise ConfigError(f"cannot make the run's folder {self.path}: {error}") from error

    def open(self) -> None:
        """Make the folders inside, and send logs to their files.

        Raises:
            ConfigError: If another process is working on the run.
        """
        self._claim()
        for folder in (self.traces, self.checkpoints, self.logs):
            folder.mkdir(exist_ok=True)
        logging.captureWarnings(True)
        _log_to(self.trainer_log, _OF_TRAINER)
        _log_to(self.inference_log, _OF_INFERENCE)
        # Failures of environments are in the trainer's log too: there they have a place in time.
        _log_to(self.environment_log, _OF_ENVIRONMENT, propagate=True)

    def close(self) -> None:
        """Leave the folder to another process, or to be removed: its lock and its logs."""
        for name in (*_OF_TRAINER, *_OF_INFERENCE, *_OF_ENVIRONMENT):
            _remove_handlers(logging.getLogger(name))
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self) -> None:
        """Keep other processes out for as long as this one lives, however it dies."""
        file = self.path / "lock"
        lock = file.open("a+")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            if not isinstance(error, BlockingIOError | PermissionError):
                return  # the file system knows no locks
            other = file.read_text().strip()
            raise ConfigError(f"process {other} is working on {self.path}; end it first") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def write_config(self, text: str) -> None:
        """Write the resolved settings, whole or not at all: other processes may be reading."""
        write_whole(self.config, text)

    def step_traces(self, step: int) -> TraceStore:
        """Return the store of a training step's traces; the first step is 1."""
        return TraceStore(self.traces / f"step-{step:06d}.jsonl")

    def eval_traces(self, step: int) -> TraceStore:
        """Return the store of the evaluation after ``step`` training steps."""
        return TraceStore(self.traces / f"eval-{step:06d}.jsonl")

    def step_learned(self, step: int) -> Path:
        """Return the file of what the loss made of a few of a training step's groups."""
        return self.learned / f"step-{step:06d}.jsonl"

    def append_metrics(self, metrics: Metrics, *, again: bool = False) -> None:
        """Write one line of metrics, flushed to disk. What is not finite becomes null.

        Args:
            metrics: The metrics of one step.
            again: Whether the step has a line, the last one, that this one replaces.
        """
        line = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        if again:
            self._write_metrics([*self.read_metrics()[:-1], line])
            return
        append_lines(self.metrics, [json.dumps(line).encode()])

    def _write_metrics(self, lines: Sequence[Mapping[str, float | None]]) -> None:
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))

    def read_metrics(self) -> list[Metrics]:
        """Return the lines written so far; a torn last one, and damaged ones, are left out."""
        return [line for _, line in self._metrics_lines() if isinstance(line, dict)]

    def _metrics_lines(self) -> Iterator[tuple[int, Metrics | bytes]]:
        """Yield the number and the metrics of each whole line, or its text where it is damaged."""
        whole = self.metrics.read_bytes() if self.metrics.exists() else b""
        for number, text in enumerate(whole[: whole.rfind(b"\n") + 1].split(b"\n"), start=1):
            if not text.strip():
                continue
            try:
                line = parse_json(text)
            except ValueError:
                line = None
            is_step = isinstance(line, dict) and isinstance(line.get("step"), int | float)
            yield number, line if is_step else text

    def _set_damaged_metrics_aside(self) -> None:
        """Move damaged lines to a file of their own: the metrics are about to be written again."""
        damaged = {n: line for n, line in self._metrics_lines() if isinstance(line, bytes)}
        if damaged:
            aside = self.metrics.with_name("metrics.damaged")
            append_lines(aside, damaged.values())
            lines = ", ".join(map(str, damaged))
            message = "%s: lines %s cannot be read, and are put aside in %s"
            log.warning(message, self.metrics, lines, aside)

    def rewind(self, step: int, *, evaluated: bool = True) -> None:
        """Go back to the state after ``step`` training steps, losing nothing.

        Metrics of later steps are dropped, because they are written again; lines that are no
        metrics are moved to ``metrics.damaged``. Traces of later steps
        are moved to ``traces/superseded-N``, so none is lost and none is counted twice.

        Args:
            step: The number of steps done.
            evaluated: Whether the evaluation after them is; if not, its traces are moved, too.
        """
        self._set_damaged_metrics_aside()
        self._write_metrics([line for line in self.read_metrics() if line["step"] <= step])
        later = [file for file in self.traces.glob("*.jsonl") if _step_of(file) > step]
        if not evaluated and (begun := self.eval_traces(step).path).exists():
            later.append(begun)
        if later:
            number = len(list(self.traces.glob("superseded-*"))) + 1
            attic = self.traces / f"superseded-{number}"
            attic.mkdir()
            for file in later:
                file.rename(attic / file.name)
                if file.stem.startswith("step") and (beside := self.learned / file.name).exists():
                    (self.learned / attic.name).mkdir(exist_ok=True)
                    beside.rename(self.learned / attic.name / file.name)


def write_whole(file: Path, text: str) -> None:
    """Replace a text file as a whole: after a kill, the old or the new one is there."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(file)


def _step_of(traces: Path) -> int:
    """Return the step that a file's traces are of; -1 for one that is not the run's own."""
    kind, _, number = traces.stem.partition("-")
    return int(number) if kind in ("step", "eval") and number.isdecimal() else -1


def _log_to(path: Path, names: Sequence[str], *, propagate: bool = False) -> None:
    handler = logging.FileHandler(path)
    handler.setFormatter(VisibleFormatter(LOG_FORMAT))
    for name in names:
        logger = logging.getLogger(name)
        _remove_handlers(logger)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = propagate


def _remove_handlers(logger: logging.Logger) -> None:
    for handler in [h for h in logger.handlers if not isinstance(h, logging.NullHandler)]:
        logger.removeHandler(handler)
        handler.close()
