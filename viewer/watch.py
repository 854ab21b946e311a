"""What the page shows, and what changed since it was last told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vf.runtime.errors import did_you_mean
from vf.viewer.evaluations import Evaluations
from vf.viewer.runs import About, RunReader, names_of, nothing_known

Event = tuple[str, Any]  # a name, and data for JSON
DEPTH = 4  # folders below a given one that are searched
_PASSED_OVER = {"checkpoints", "logs", "profile", "artifacts", "failed", "tensorboard", "wandb"}


@dataclass(slots=True)
class Sources:
    """What there is to view.

    Attributes:
        runs: Folders of training runs.
        results: Folders of evaluations, as `vf-rl eval` writes them.
        traces: Files of traces.
        missing: Paths that do not exist, or have nothing to view yet.
    """

    runs: list[Path] = field(default_factory=list)
    results: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a training run, be it one that has just begun."""
    return (folder / "metrics.jsonl").is_file() or (
        (folder / "config.toml").is_file() and (folder / "traces").is_dir()
    )


def is_results(folder: Path) -> bool:
    """Return whether a folder holds an evaluation, finished or not."""
    return (folder / "config.json").is_file() and (
        (folder / "results.json").is_file() or any(folder.glob("*/*/traces.jsonl"))
    )


def find(paths: Sequence[Path]) -> Sources:
    """Return what files, folders of runs, folders of results, and folders of these hold.

    Nothing is opened. What is not there (yet) is listed as missing.
    """
    sources = Sources()
    for path in paths:
        before = len(sources.runs) + len(sources.results) + len(sources.traces)
        if path.is_file():
            sources.traces.append(path)
        else:
            for folder in _folders(path):
                _take(folder, sources, named=folder == path)
        if len(sources.runs) + len(sources.results) + len(sources.traces) == before:
            sources.missing.append(path)
    for listed in (sources.runs, sources.results, sources.traces):
        listed[:] = dict.fromkeys(listed)
    return sources


def _take(folder: Path, sources: Sources, *, named: bool) -> None:
    if is_run(folder):
        sources.runs.append(folder)
        sources.traces += sorted((folder / "traces").glob("*.jsonl"))
    elif is_results(folder):
        sources.results.append(folder)
        sources.traces += sorted(folder.glob("*/*/traces.jsonl"))
    elif named:
        sources.traces += sorted(folder.glob("*.jsonl"))
        if (folder / "traces").is_dir():  # a run's that has only its traces left
            sources.traces += sorted((folder / "traces").glob("*.jsonl"))


def _folders(top: Path) -> Iterator[Path]:
    """Yield a folder and those below it, but none inside of a run or of an evaluation."""
    for directory, names, _ in os.walk(top):
        folder = Path(directory)
        yield folder
        deep = len(folder.relative_to(top).parts) >= DEPTH
        inside = is_run(folder) or is_results(folder)
        names[:] = [] if deep or inside else sorted(names)
        names[:] = [n for n in names if not n.startswith(".") and n not in _PASSED_OVER]


class Watch:
    """Follows some paths.

    Args:
        paths: Runs, evaluations, files of traces, or folders of these; they need not exist yet.
        about: Returns a run's data besides its metrics; see
            :class:`~vf.viewer.runs.RunReader`.
        evaluates: Read the traces of evaluations, too, which takes seconds where they are many.
    """

    def __init__(
        self, paths: Sequence[Path], about: About = nothing_known, *, evaluates: bool = True
    ) -> None:
        self.paths = list(paths)
        self.evaluates = evaluates
        self._about = about
        self._runs: dict[Path, RunReader] = {}
        self._evaluations = Evaluations()
        self._measured: Any = None
        self._sent: dict[str, str] = {}
        self.sources = Sources()

    @property
    def title(self) -> str:
        """What the page is called."""
        return self.paths[0].absolute().name + (" and more" if len(self.paths) > 1 else "")

    def scan(self) -> list[Event]:
        """Look at the files; returns what is new since the last call."""
        events = self._look()
        for reader in self._runs.values():
            if (news := reader.refresh()) is not None:
                events.append(("run", news))
        if (measured := self._measure()) is not None:
            self._measured = measured
            events.append(("evaluations", measured))
        return events

    def _measure(self) -> Any:
        if not self.evaluates:
            return None
        runs = {folder: reader.name for folder, reader in self._runs.items()}
        results = dict(zip(self.sources.results, names_of(self.sources.results), strict=True))
        return self._evaluations.scan(runs, results)

    def everything(self) -> list[Event]:
        """Return all that a page needs which has nothing yet, as of the last :meth:`scan`."""
        return [
            *((name, json.loads(text)) for name, text in self._sent.items()),
            *(("run", reader.everything()) for reader in self._runs.values()),
            *([("evaluations", self._measured)] if self._measured else []),
        ]

    def _look(self) -> list[Event]:
        self.sources = find(self.paths)
        new = [folder for folder in self.sources.runs if folder not in self._runs]
        if new:  # a name may need a parent more, now that there is another run
            folders = [*self._runs, *new]
            for folder, name in zip(folders, names_of(folders), strict=True):
                if folder in self._runs:
                    self._runs[folder].name = name
                else:
                    self._runs[folder] = RunReader(folder, name, self._about)
        return [
            *self._news("page", {"title": self.title, "missing": self.waits}),
            *self._news("traces", self._traces()),
        ]

    @property
    def waits(self) -> list[str]:
        """What of the paths is not there yet, as of the last :meth:`scan`, in words."""
        return [f"{path}{self._hint(path)}" for path in self.sources.missing]

    def _hint(self, path: Path) -> str:
        if path.exists():
            return " holds no run, evaluation or traces yet."
        beside = path.parent
        names = [entry.name for entry in beside.iterdir()] if beside.is_dir() else []
        return f" does not exist yet.{did_you_mean(path.name, names)}"

    def _traces(self) -> dict[str, Any]:
        sizes = {}
        for file in self.sources.traces:
            try:
                sizes[str(file)] = file.stat().st_size
            except OSError:  # moved away since: a resumed run does that
                continue
        return {"files": sizes}

    def _news(self, name: str, data: Any) -> list[Event]:
        text = json.dumps(data)
        if self._sent.get(name) == text:
            return []
        self._sent[name] = text
        return [(name, data)]
