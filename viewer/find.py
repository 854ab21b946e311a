"""Which runs, evaluations and traces stand behind the paths that are to be viewed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
