"""Scoring saved traces again, offline, with another rubric."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from vf.rubrics.group import AnyRubric, score_group
from vf.runtime.errors import ConfigError, InfrastructureError, RubricError
from vf.runtime.garbage import fewer_collections
from vf.traces.store import TraceStore
from vf.traces.trace import Failure, Trace

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
    are, but for those of which only the scoring had failed. A trace that cannot be scored has
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
        ConfigError: There is no such file, a line of it is not a trace, or a setting is out of
            range.
    """
    if max_concurrent < 1 or not timeout > 0:
        raise ConfigError("rescore: max_concurrent and timeout must be positive")
    if isinstance(traces, (str, os.PathLike)):
        traces = TraceStore(traces)
    with fewer_collections():
        scored = _each(traces, rubric, max_concurrent, timeout)
        if rubric.group_rewards:
            scored = _in_groups(scored, rubric, timeout)
        async for trace in scored:
            yield trace


async def _in_groups(
    scored: AsyncIterator[Trace], rubric: AnyRubric, timeout: float
) -> AsyncIterator[Trace]:
    """Score whole groups, which takes all traces at once, and yield in order."""
    every = [trace async for trace in scored]
    groups: dict[tuple[str, str, str], list[Trace]] = {}
    for trace in every:
        key = trace.environment, trace.task.id, str(trace.info.get("step"))
        groups.setdefault(key, []).append(trace)
    for members in groups.values():
        await score_group(rubric, members, timeout)
    for trace in every:
        yield trace


async def _each(
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
