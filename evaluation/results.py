"""The results folder: traces appended as they finish; any interruption can be resumed.

FOLDER/config.json                     what was measured: settings, environments, model files
FOLDER/results.json                    the results, once all rollouts are done
FOLDER/ENVIRONMENT/MODEL/traces.jsonl  one line a rollout
FOLDER/ENVIRONMENT/MODEL/failed/       rollouts that were retried since; damaged lines, put aside
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from vf.evaluation.eval_config import slug, with_defaults
from vf.runtime.durable import append_lines
from vf.runtime.errors import ConfigError
from vf.runtime.parse import parse_json
from vf.traces.store import DamagedLine, TraceStore
from vf.traces.trace import Trace

TRACES = "traces.jsonl"
DAMAGED = "damaged.jsonl"
_REPAIR = (
    f"With --repair, such lines are put aside, in failed/{DAMAGED}, and their rollouts run again"
)
Key = tuple[str, int]  # a task's id, and the number of the rollout among those of the task


def mark(trace: Trace, environment: str, model: str, index: int) -> None:
    """Write into a trace what it is a rollout of."""
    trace.info["eval"] = {"environment": environment, "model": model, "rollout": index}


def key_of(trace: Trace) -> Key:
    """Return which rollout of its evaluation a trace is.

    Raises:
        ConfigError: If it is of no evaluation.
    """
    try:
        return trace.task.id, int(trace.info["eval"]["rollout"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"the trace {trace.id} does not say which rollout of an evaluation it is. {_REPAIR}"
        ) from None


class Cell:
    """The traces of one model in one environment."""

    def __init__(self, folder: Path, environment: str, model: str) -> None:
        self.environment = environment
        self.model = model
        self.path = folder / slug(environment) / slug(model)
        self.store = TraceStore(self.path / TRACES)
        self._lines = 0

    def traces(self) -> Iterator[Trace]:
        """Yield what was written, in order; nothing if there is no file yet.

        Raises:
            ConfigError: If a line is not a trace.
        """
        try:
            if self.store.path.exists():
                yield from self.store
        except DamagedLine as error:
            raise ConfigError(f"{error.problem}. {_REPAIR}") from None

    def done(self, whole: int | None = None) -> set[Key]:
        """Return which rollouts are done, and touch nothing.

        Args:
            whole: The number of rollouts of a task, where they are scored as a group: then a
                incomplete group is to be retried.
        """
        done: set[Key] = set()
        self._lines = 0
        for trace in self.traces():
            self._lines += 1
            if trace.error is None:
                done.add(key_of(trace))
        if whole is not None:
            sizes: dict[str, int] = {}
            for task, _ in done:
                sizes[task] = sizes.get(task, 0) + 1
            done = {key for key in done if sizes[key[0]] == whole}
        return done

    def keep(self, done: set[Key]) -> None:
        """Put away all rollouts except those that :meth:`done` returned: they are retried.

        They go to ``failed/traces.jsonl``. A process killed in here loses nothing: what was put
        away twice is put away again at most.
        """
        if self._lines > len(done):
            self._rewrite(set(done))

    def _rewrite(self, remaining: set[Key]) -> None:
        kept, away = self.path / "traces.tmp", self.path / "failed" / "traces.jsonl"
        kept.unlink(missing_ok=True)
        with TraceStore(kept) as good, TraceStore(away) as bad:
            for trace in self.traces():
                key = key_of(trace)
                if trace.error is None and key in remaining:
                    remaining.discard(key)
                    good.append(trace)
                else:
                    bad.append(trace)
        if kept.exists():
            kept.replace(self.store.path)
        else:
            self.store.path.unlink()


def _repair(traces: Path) -> int:
    """Put aside the lines of a file that are no traces of an evaluation; return how many.

    A process killed in here loses nothing: what was put aside twice is in the other file twice.
    """
    lines = [line for line in traces.read_bytes().split(b"\n") if line.strip()]
    damaged = [line for line in lines if not _is_whole(line)]
    if damaged:
        aside, kept = traces.parent / "failed" / DAMAGED, traces.parent / "traces.tmp"
        with _naming(aside):
            aside.parent.mkdir(exist_ok=True)
            append_lines(aside, damaged)
        with _naming(traces):
            kept.write_bytes(b"".join(line + b"\n" for line in lines if _is_whole(line)))
            kept.replace(traces)
    return len(damaged)


def _is_whole(line: bytes) -> bool:
    try:
        key_of(Trace.from_json(line.removeprefix(codecs.BOM_UTF8)))
    except (ValueError, ConfigError):
        return False
    return True


class ResultsFolder:
    """One evaluation's folder; a context manager, because it is locked while it is written to.

    Args:
        path: The folder.

    Raises:
        ConfigError: If, at ``with``, another process is writing to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def __enter__(self) -> ResultsFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise ConfigError(f"another vf-rl eval is writing to {self.path}") from None
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written to: {error.strerror}") from error
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if not (self.path / "config.json").exists():  # nothing was begun: leave no trace of it
            with suppress(OSError):
                (self.path / "lock").unlink()
                self.path.rmdir()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def before(self) -> dict[str, Any] | None:
        """Return what was measured here before; None if the folder is new.

        Raises:
            ConfigError: If it is not empty, and not of an evaluation.
        """
        if (self.path / "config.json").exists():
            return read_config(self.path)
        foreign = sorted({entry.name for entry in self.path.iterdir()} - {"lock", "config.tmp"})
        if foreign:
            raise ConfigError(
                f"{self.path} is not a results folder (it holds {foreign[0]!r}); name another with "
                "--output"
            )
        return None

    def holds_results(self) -> bool:
        """Return whether a rollout of any environment and model ended without an error."""
        files = self.path.glob(f"*/*/{TRACES}")
        return any(trace.error is None for file in files for trace in TraceStore(file))

    def begin(self, measured: Mapping[str, Any]) -> None:
        """Write down what is measured here, before the first rollout; earlier results are void."""
        (self.path / "results.json").unlink(missing_ok=True)
        _write(self.path / "config.json", measured)

    def write_results(self, results: Mapping[str, Any]) -> Path:
        """Write the results, and return the file.

        Raises:
            OSError: If it cannot be written; the message names the file.
        """
        _write(self.path / "results.json", results)
        return self.path / "results.json"

    def repair(self) -> int:
        """Put aside the damaged lines of all traces files, and return how many there were.

        Raises:
            OSError: If a file cannot be written; the message names it.
        """
        return sum(map(_repair, self.path.glob(f"*/*/{TRACES}")))

    def cell(self, environment: str, model: str) -> Cell:
        """Return the place of one model in one environment."""
        return Cell(self.path, environment, model)


def series(base: Path) -> list[Path]:
    """Return the results folders of one name, oldest first: ``base``, ``base@2``, ..."""
    base = base if base.name else base.absolute()  # of "."
    folders = [base] if _holds_anything(base) else []
    number = 2
    while _holds_anything(folder := base.with_name(f"{base.name}@{number}")):
        folders.append(folder)
        number += 1
    return folders


def next_of(base: Path) -> Path:
    """Return the folder for a new result beside those that there are."""
    if not _holds_anything(base):
        return base
    base = base if base.name else base.absolute()
    return base.with_name(f"{base.name}@{max(1, len(series(base))) + 1}")


def _holds_anything(folder: Path) -> bool:
    return folder.is_dir() and any(entry.name != "lock" for entry in folder.iterdir())


def read_config(folder: Path) -> dict[str, Any]:
    """Return what a results folder says was measured, settings that are newer at their defaults.

    Raises:
        ConfigError: If it is not a results folder.
    """
    try:
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        if isinstance(config, dict) and "settings" in config:
            config["settings"] = with_defaults(config["settings"])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not a results folder: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{folder} is not a results folder: config.json is not an object")
    return config


def _write(file: Path, content: Mapping[str, Any]) -> None:
    written = file.with_suffix(".tmp")
    with _naming(file):
        with written.open("w", encoding="utf-8") as out:
            out.write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
            out.flush()
            os.fsync(out.fileno())
        written.replace(file)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Have the error of a full disk, which names no file, name this one."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{file} could not be written: {error.strerror}; make room and resume"
        ) from error
