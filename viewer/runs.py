"""A training run as the page needs it: its metrics by name, and what is known about it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vf.runtime.parse import parse_json
from vf.traces.view.encode import strict

Line = dict[str, Any]
About = Callable[[Path, Sequence[Line]], Mapping[str, Any]]

DIGITS = 6  # of a number on the page
_LARGEST = 1e308  # of a whole number, which may be more than a float holds
_TAIL = 64  # bytes before the end, by which a file that was replaced is recognised


def nothing_known(folder: Path, lines: Sequence[Line]) -> Mapping[str, Any]:
    """Know nothing about a run but its metrics."""
    return {}


class RunReader:
    """Follows a run's `metrics.jsonl` while it is written.

    Args:
        folder: The run's.
        name: The name on the page.
        about: Given folder and lines, returns what else is shown of it: ``settings`` by name,
            ``alarms`` and ``advice`` in sentences, ``model``, ``environment``, ``max_steps``.

    Attributes:
        lines: The lines so far.
    """

    def __init__(self, folder: Path, name: str, about: About = nothing_known) -> None:
        self.folder, self.name = folder, name
        self.lines: list[dict[str, Any]] = []
        self._about = about
        self._file = folder / "metrics.jsonl"
        self._offset = 0
        self._tail = b""
        self._seen: tuple[float, ...] | None = None

    def refresh(self) -> dict[str, Any] | None:
        """Read what was written since; returns what is new, or None where nothing is."""
        seen = (*_stamp(self._file), *_stamp(self.folder / "config.toml"))
        if seen == self._seen:
            return None
        self._seen = seen
        return self._event(self._read())

    def everything(self) -> dict[str, Any]:
        """Return all that is known, as of the last :meth:`refresh`."""
        return self._event(0)

    def _event(self, start: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": str(self.folder),
            "written": _stamp(self._file)[0],
            "from": start,
            "count": len(self.lines),
            "columns": columns(self.lines[start:]),
            **strict(dict(self._about(self.folder, self.lines))),
        }

    def _read(self) -> int:
        """Read the whole lines that are new; returns the number of the first that changed."""
        try:
            with self._file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, self._offset - _TAIL))
                replaced = size < self._offset or file.read(len(self._tail)) != self._tail
                old = self.lines
                if replaced:  # as where a line is written again, or a run was rewound
                    self.lines, self._offset = [], 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return len(self.lines)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._tail = whole[-_TAIL:] if len(whole) >= _TAIL else (self._tail + whole)[-_TAIL:]
        begin = len(self.lines)
        for line in whole.splitlines():
            if (parsed := _parse(line)) is not None:
                self.lines.append(parsed)
        if not replaced:
            return begin
        pairs = zip(old, self.lines, strict=False)
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
        return min(len(old), len(self.lines)) if same is None else same


def columns(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """Return lines by metric: a list each, None where a line has no finite value."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [_short(line.get(name)) for line in lines] for name in names}


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its own, with as many parents as tell it from the others."""
    paths = [folder.absolute() for folder in folders]
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def _stamp(file: Path) -> tuple[float, ...]:
    try:
        status = file.stat()
    except OSError:
        return (0.0, 0, 0)
    return (status.st_mtime, status.st_size, status.st_ino)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        values = parse_json(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("step"), int | float):
        return None
    return {
        str(name): value if isinstance(value, int | float) and abs(value) < _LARGEST else None
        for name, value in values.items()
    }


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
