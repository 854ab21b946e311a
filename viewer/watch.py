"""What the page shows, and what changed since it was last told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vf.runtime.errors import did_you_mean
from vf.viewer.evaluations import Evaluations
from vf.viewer.find import Sources, find
from vf.viewer.runs import About, RunReader, names_of, nothing_known

Event = tuple[str, Any]  # a name, and data for JSON


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
