"""``vf-eval --rescore TRACES --rubric RUBRIC``."""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from vf.environments.registry import make
from vf.evaluation.rescore import rescore
from vf.rubrics.group import AnyRubric
from vf.runtime.errors import ConfigError
from vf.traces.store import TraceStore
from vf.traces.trace import Trace

DONE, FAILED = 0, 1


def run_rescore(
    traces: Path, rubric: str, args: dict[str, Any] | None = None, output: Path | None = None
) -> int:
    """Score saved traces again, say what changed, and return the exit code.

    Args:
        traces: A traces file, or a folder of them.
        rubric: See :func:`load_rubric`.
        args: Its arguments.
        output: Where the traces are written, if anywhere.

    Raises:
        ConfigError: The rubric or the traces cannot be loaded, or the output exists.
    """
    loaded = load_rubric(rubric, args)
    files = _files(traces)
    if output is not None and output.exists():
        raise ConfigError(f"--output: {output} exists, and is never overwritten")
    return asyncio.run(_rescore(files, loaded, output))


def load_rubric(name: str, args: dict[str, Any] | None = None) -> AnyRubric:
    """Return a rubric by name.

    Args:
        name: ``module:name`` of a rubric, or of a function or class that returns one; or the id
            of an environment.
        args: Arguments of the function, or of the environment.

    Raises:
        ConfigError: It cannot be loaded, or is no rubric.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return make(name, **(args or {})).rubric
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--rubric: cannot load {name!r}: {error}") from error
    if isinstance(found, type) or not hasattr(found, "score"):
        if not callable(found):
            raise ConfigError(f"--rubric: {name!r} is a {type(found).__name__}, not a rubric")
        try:
            found = found(**(args or {}))
        except TypeError as error:
            raise ConfigError(f"--rubric: {name!r} cannot be called: {error}") from error
    elif args:
        raise ConfigError(f"--rubric: {name!r} is a rubric already, and takes no --args")
    if not all(hasattr(found, each) for each in ("score", "score_group", "group_rewards")):
        raise ConfigError(f"--rubric: {name!r} gave a {type(found).__name__}, not a rubric")
    return found  # type: ignore[no-any-return]


async def _rescore(files: Sequence[Path], rubric: AnyRubric, output: Path | None) -> int:
    tally = _Tally()
    store = None if output is None else TraceStore(output)
    try:
        for file in files:  # one by one: a group never spans two
            async for trace in rescore(tally.before(TraceStore(file)), rubric):
                tally.after(trace)
                if store is not None:
                    store.append(trace)
    finally:
        if store is not None:
            store.close()
    print("\n".join(tally.lines()))
    return FAILED if tally.errors else DONE


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"--rescore: there is no .jsonl file in {path}")
    return files


class _Tally:
    """What changed, without keeping the traces."""

    def __init__(self) -> None:
        self.total = self.failed = self.unscored = self.changed = 0
        self.errors: list[str] = []
        self._old: list[float] = []
        self._new: list[float] = []
        self._pending: deque[tuple[bool, float | None]] = deque()

    def before(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        for trace in traces:
            # One that failed in scoring alone can be scored anew.
            self._pending.append((trace.error is not None and not trace.ended, trace.reward))
            yield trace

    def after(self, trace: Trace) -> None:
        had_failed, old = self._pending.popleft()  # they come back in order
        self.total += 1
        self.failed += had_failed
        if trace.error is not None:
            self.errors += [] if had_failed else [trace.error.message]
            return
        new = trace.reward
        self.unscored += new is None
        self.changed += old != new
        self._old += [] if old is None else [old]
        self._new += [] if new is None else [new]

    def lines(self) -> Iterator[str]:
        yield f"{self.total} traces, {self.failed} of them failed rollouts, left as they are"
        yield f"reward {_mean(self._old)} → {_mean(self._new)}, {self.changed} changed"
        if self.unscored:
            yield f"{self.unscored} cannot be scored by this rubric"
        if self.errors:
            yield f"{len(self.errors)} could not be scored; the first: {self.errors[0]}"


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4f}" if values else "(none)"
