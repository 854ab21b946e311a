"""Scoring saved traces again, offline, with another rubric."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from vf.environments.locate import is_environment, load, parse_reference
from vf.environments.registry import is_registered, make, registered, registrar
from vf.rubrics.group import AnyRubric, score_group
from vf.runtime.errors import ConfigError, InfrastructureError, RubricError, did_you_mean
from vf.runtime.garbage import fewer_collections
from vf.traces.store import TraceStore
from vf.traces.trace import Failure, Trace
from vf.traces.view.sources import NEEDED, Source, Unreadable, find_sources, read
from vf.traces.writer import TraceWriter

TIMEOUT = 300.0  # seconds, the environments' own default for a rollout


async def rescore(
    traces: Iterable[Trace] | str | os.PathLike[str],
    rubric: AnyRubric,
    *,
    max_concurrent: int = 64,
    timeout: float = TIMEOUT,
) -> AsyncIterator[Trace]:
    """Yield saved traces in their order, scored by another rubric.

    Only the trace is there: the environment, its sandbox included, is closed for good, so
    scorers that look into it cannot be used here. Rollouts that had failed are passed on as they
    are, except for those of which only the scoring had failed. A trace that cannot be scored has
    ``error`` set.

    Reads as it goes, so the file may be larger than the memory. Not with group rewards: these
    need a whole group (the traces of one task and training step), whose members may stand
    anywhere in the file.

    Example::

        async for trace in rescore("runs/a/traces/step-000001.jsonl", rubric):
            print(trace.task.id, trace.reward)

    Args:
        traces: A traces file, or traces; their score is replaced in place.
        rubric: Scores them.
        max_concurrent: Most traces in hand at once.
        timeout: Seconds for the scoring of one trace, or of one group.

    Raises:
        ConfigError: If there is no such file, a line of it is not a trace, or a setting is out of
            range.
    """
    if max_concurrent < 1 or not timeout > 0:
        raise ConfigError("rescore: max_concurrent and timeout must be positive")
    if isinstance(traces, (str, os.PathLike)):
        traces = TraceStore(traces)
    with fewer_collections():
        scored = _in_order(traces, rubric, max_concurrent, timeout)
        if rubric.group_rewards:
            scored = _in_groups(scored, rubric, timeout)
        async for trace in scored:
            yield trace


async def _in_groups(
    scored: AsyncIterator[Trace], rubric: AnyRubric, timeout: float
) -> AsyncIterator[Trace]:
    """Score whole groups, which takes all traces at once, and yield in order."""
    every = [trace async for trace in scored]
    groups: dict[tuple[str, str, tuple[int, int] | None], list[Trace]] = {}
    for trace in every:
        of = trace.origin
        key = trace.environment, trace.task.id, None if of is None else (of.step, of.group)
        groups.setdefault(key, []).append(trace)
    for members in groups.values():
        await score_group(rubric, members, timeout)
    for trace in every:
        yield trace


async def _in_order(
    traces: Iterable[Trace], rubric: AnyRubric, max_concurrent: int, timeout: float
) -> AsyncIterator[Trace]:
    """Score one by one, several at once, and yield in order."""
    running: deque[asyncio.Task[Trace]] = deque()
    try:
        for trace in traces:
            running.append(asyncio.create_task(_score(trace, rubric, timeout)))
            if len(running) >= max_concurrent:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*running, return_exceptions=True)


async def _score(trace: Trace, rubric: AnyRubric, timeout: float) -> Trace:
    if trace.error is not None and not trace.ended:
        return trace
    trace.score = trace.error = None
    try:
        async with asyncio.timeout(timeout) as deadline:
            trace.score = await rubric.score(trace)
    except InfrastructureError as error:
        _fail(trace, error)
    except TimeoutError:
        if not deadline.expired():
            raise
        _fail(trace, RubricError(f"the rubric took longer than {timeout:g} s"))
    return trace


def _fail(trace: Trace, error: InfrastructureError) -> None:
    trace.error = Failure.of(error)


def load_rubric(name: str, args: dict[str, Any] | None = None) -> AnyRubric:
    """Return a rubric by name.

    Args:
        name: ``module:name`` or ``file.py:name`` of a rubric, or of a function or class that
            returns one; ``file.py`` of the only rubric in it; or any environment's id, for the
            rubric of that.
        args: Arguments of the function, class or environment.

    Raises:
        ConfigError: If it cannot be loaded or called, or is not a rubric.
    """
    reference = parse_reference(name, is_registered)
    where, colon, _ = name.partition(":")
    if reference is None and colon and not is_registered(where):
        raise ConfigError(f"--rubric: cannot load {name!r}: there is no module {where!r}")
    if reference is None:
        return make(name, **(args or {})).rubric
    try:
        module = load(replace(reference, what="rubric"))
    except ConfigError as error:
        raise ConfigError(f"--rubric: cannot load {name!r}: {error}") from error
    if not reference.name:
        candidate = _only_rubric(module, where)
    elif hasattr(module, reference.name) or reference.name in _environments(module):
        candidate = getattr(module, reference.name, None)
    else:
        near = did_you_mean(reference.name, [*_environments(module), *vars(module)])
        raise ConfigError(f"--rubric: there is no {reference.name!r} in {where}.{near}")
    if candidate is None or is_environment(candidate):
        return make(name, **(args or {})).rubric
    if isinstance(candidate, type) or not hasattr(candidate, "score"):
        if not callable(candidate):
            raise ConfigError(f"--rubric: {name!r} is a {type(candidate).__name__}, not a rubric")
        try:
            candidate = candidate(**(args or {}))
        except TypeError as error:
            raise ConfigError(f"--rubric: {name!r} cannot be called: {error}") from error
    elif args:
        raise ConfigError(f"--rubric: {name!r} is already a rubric and takes no --args")
    if not _is_rubric(candidate):
        raise ConfigError(f"--rubric: {name!r} gave a {type(candidate).__name__}, not a rubric")
    return candidate


def _only_rubric(module: ModuleType, where: str) -> AnyRubric | None:
    """Return the rubric in a module; None if it has an environment, which has one.

    Raises:
        ConfigError: If there is neither, or there are several rubrics.
    """
    if _environments(module):
        return None
    rubrics = {name: value for name, value in vars(module).items() if _is_rubric(value)}
    if len({id(value) for value in rubrics.values()}) == 1:
        return next(iter(rubrics.values()))  # type: ignore[no-any-return]
    if rubrics:
        listed = ", ".join(f"{where}:{name}" for name in rubrics)
        raise ConfigError(
            f"--rubric: there are {len(rubrics)} rubrics in {where}; name one: {listed}"
        )
    functions = [
        f"{where}:{name}"
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    raise ConfigError(
        f"--rubric: there is no rubric in {where}. Write `rubric = vf.Rubric(...)` in it, or name "
        f"a function that returns one: {', '.join(functions) or f'{where}:FUNCTION'}"
    )


def _environments(module: ModuleType) -> list[str]:
    """Return the names of the environments that a module holds or registers."""
    held = [name for name, value in vars(module).items() if is_environment(value)]
    return held + [id for id in registered() if registrar(id) == module.__name__]


def _is_rubric(value: object) -> bool:
    needed = ("score", "score_group", "group_rewards")
    return not isinstance(value, type) and all(hasattr(value, name) for name in needed)


def rescore_files(traces: Path, rubric: AnyRubric, output: Path | None = None) -> Tally:
    """Score the traces of a file, or of each file of a folder, again.

    Args:
        traces: A traces file, a folder of them, a run's folder or a results folder.
        rubric: Scores them.
        output: The file for the traces, or None to write none.

    Returns:
        What changed.

    Raises:
        ConfigError: If there are no traces, a file holds something else, a line of one is wrong,
            or ``output`` exists.
    """
    sources = find_sources([traces])
    for source in sources:
        _check(source)
    if output is not None and output.exists():
        raise ConfigError(f"--output: {output} exists and is never overwritten")
    tally = Tally()

    async def score(store: TraceStore | None, writer: TraceWriter) -> None:
        for source in sources:  # one by one: a group never spans two
            async for trace in rescore(tally.before(TraceStore(source.path)), rubric):
                tally.after(trace)
                if store is not None:
                    writer.check()
                    writer.append(store, trace)

    writer = TraceWriter()
    with nullcontext() if output is None else TraceStore(output) as store:
        try:
            asyncio.run(score(store, writer))
        finally:
            writer.stop()
    writer.check()
    return tally


def _check(source: Source) -> None:
    """See from its first line that a file holds traces.

    Raises:
        ConfigError: If it does not; the message says what it is, and what is needed.
    """
    first = next(read(source), None)
    if first is None:
        raise ConfigError(f"--rescore: {source.path} is empty: there is nothing to score")
    if isinstance(first, Unreadable):
        raise ConfigError(
            f"--rescore: {source.path} does not hold traces: line {first.line}: {first.why}. "
            f"{NEEDED}"
        )
    if first.info.get("foreign") or source.path.suffix == ".parquet":
        what = "a Parquet export" if source.path.suffix == ".parquet" else "OpenAI chat lines"
        raise ConfigError(
            f"--rescore: {source.path} holds {what}, not traces. They lack what a rubric reads: "
            f"the task's answer, the results of the tool calls, how the rollout ended. {NEEDED}"
        )


class Tally:
    """What rescoring changed, without keeping the traces."""

    def __init__(self) -> None:
        self.total = self.failed = self.unscored = self.changed = 0
        self.errors: list[str] = []
        self._old: list[float] = []
        self._new: list[float] = []
        self._pending: deque[tuple[bool, float | None]] = deque()

    def before(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        """Note the rewards that the traces have, while passing them on."""
        for trace in traces:
            # One whose scoring alone failed can be scored again.
            self._pending.append((trace.error is not None and not trace.ended, trace.reward))
            yield trace

    def after(self, trace: Trace) -> None:
        """Compare the trace's new reward with the one it had."""
        had_failed, old = self._pending.popleft()  # traces come back in order
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
        """Yield the result in sentences."""
        yield f"{self.total} traces; failed rollouts left unchanged: {self.failed}"
        yield f"reward {_mean(self._old)} → {_mean(self._new)}, {self.changed} changed"
        if self.unscored:
            yield f"{self.unscored} cannot be scored by this rubric"
        if self.errors:
            yield f"{len(self.errors)} could not be scored; the first: {self.errors[0]}"


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4f}" if values else "(none)"
