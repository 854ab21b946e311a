"""What scoring costs: `python benchmarks/rubrics.py`.

- *speed*: 10,000 saved traces (a tool call and an answer each) are read and scored by a rubric of
  ten parts: an outcome, six process penalties, two gates and a metric. Microseconds per trace, with
  and without the reading.
- *blocking*: how long the event loop is held up while 64 scorers run at once that each compute with
  the interpreter's lock held (a pattern that backtracks): marked `cpu_bound`, and, for comparison,
  plain ones in threads. A task that sleeps for a millisecond at a time measures the longest gap;
  the gap of a loop in which nothing else happens says what is the machine's own.

The last line is JSON: `ratio` is the budget for the longest gap over the longest gap.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from harness import parse, print_result, say
from slow_scorers import backtrack, backtrack_elsewhere

import vf
from vf.evaluation.rescore import rescore
from vf.rubrics.penalties import (
    bad_format,
    extra_tool_calls,
    keeps_policy,
    repeated_calls,
    repetition,
    safe_content,
    tool_cost,
    tool_errors,
)
from vf.traces.trace import Branch, ToolEvent, Turn

BUDGET_MS = 50.0  # the longest gap that the loop may have


def correct(trace: vf.Trace) -> float:
    """The simplest outcome there is."""
    return float(trace.reply == f"Answer: {trace.task.answer}")


def turns(trace: vf.Trace) -> float:
    """A metric."""
    return len(trace.turns)


def ten_parts() -> vf.Rubric:
    """One of the ten is the outcome."""
    return vf.Rubric(
        outcome=correct,
        penalties=[
            tool_errors(0.05),
            extra_tool_calls(0.05, free="operations"),
            tool_cost({"calculate": 1.0}, budget=8.0, weight=0.05),
            repeated_calls(0.05),
            repetition(0.05),
            bad_format(r"Answer: -?\d+", 0.05),
        ],
        gates=[keeps_policy({"bash": r"rm\s+-rf"}), safe_content(r"\bpassword\b")],
        metrics=[turns],
    )


def make_trace(index: int) -> vf.Trace:
    """Return a rollout of two turns: a call, its result, an answer; 300 tokens."""
    task = vf.Task(str(index), "Compute 17 * 23.", answer=391, info={"operations": 1})
    trace = vf.Trace("calculator", task, index)
    call = vf.ToolCall("c", "calculate", '{"op": "*", "a": 17, "b": 23}')
    trace.messages = [
        vf.Message("system", "Work it out with the calculate tool."),
        vf.Message("user", "Compute 17 * 23."),
        vf.Message("assistant", "", "I multiply 17 by 23 with the tool.", [call]),
        vf.Message("tool", "391", tool_call_id="c", name="calculate"),
        vf.Message("assistant", "Answer: 391", "The tool says 391."),
    ]
    trace.prompt_messages = 2
    trace.tool_events = [ToolEvent(0, "c", "calculate", "ok", seconds=0.001)]
    trace.turns = [Turn(200, 60, "stop", 0.5), Turn(270, 30, "stop", 0.3)]
    branch = Branch()
    branch.add_context(list(range(200)), 0)
    branch.add_sampled(list(range(60)), [-0.25] * 60, [3] * 60, 0)
    branch.add_context(list(range(10)), 1)
    branch.add_sampled(list(range(30)), [-0.25] * 30, [3] * 30, 1)
    trace.branches = [branch]
    return trace


async def scored(source: Path | list[vf.Trace], rubric: vf.Rubric) -> tuple[int, float]:
    """Score traces; return how many, and the longest gap of the loop in milliseconds."""

    async def run() -> int:
        count = 0
        async for trace in rescore(source, rubric):
            assert trace.reward is not None
            count += 1
        return count

    return await watched(run())


async def watched(work: Awaitable[Any]) -> tuple[Any, float]:
    """Await something; return what it gave, and the loop's longest gap in milliseconds."""
    longest, last = 0.0, time.perf_counter()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    try:
        return await work, 1000 * longest
    finally:
        watcher.cancel()


async def blocked(fn: Callable[[vf.Trace], float], scorers: int) -> tuple[float, float]:
    """Return the loop's longest gap in milliseconds, and the seconds that the scoring took."""
    rubric = vf.Rubric(fn)
    traces = [make_trace(index) for index in range(scorers)]
    await asyncio.gather(*(rubric.score(trace) for trace in traces[: os.cpu_count()]))
    started = time.perf_counter()
    _, gap = await watched(asyncio.gather(*(rubric.score(trace) for trace in traces)))
    return gap, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=2.0, help="seconds in which nothing happens")
    parser.add_argument("--scorers", type=int, default=64, help="at once")
    args = parse(parser, traces=50, rounds=1, idle=0.1, scorers=4)
    rubric = ten_parts()
    say(f"writing {args.traces:,} traces")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.jsonl"
        with vf.TraceStore(path) as store:
            for index in range(args.traces):
                store.append(make_trace(index))
        kept = list(vf.TraceStore(path))
        whole: list[float] = []
        alone: list[float] = []
        gaps, plain_gaps, cpu_gaps, idle_gaps = [], [], [], []
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            for source, found in ((path, whole), (kept, alone)):
                started = time.perf_counter()
                count, gap = asyncio.run(scored(source, rubric))
                found.append(1e6 * (time.perf_counter() - started) / count)
                gaps.append(gap)
            idle_gaps.append(asyncio.run(watched(asyncio.sleep(args.idle)))[1])
            cpu_gap, seconds = asyncio.run(blocked(backtrack_elsewhere, args.scorers))
            plain_gap, plain_seconds = asyncio.run(blocked(backtrack, args.scorers))
            cpu_gaps.append(cpu_gap)
            plain_gaps.append(plain_gap)
            print(
                f"{whole[-1]:7.1f} µs per trace read and scored, {alone[-1]:7.1f} scored;  longest "
                f"gap {gaps[-1]:6.1f} ms.  {args.scorers} that compute: {cpu_gap:7.1f} ms in "
                f"{seconds:.1f} s with cpu_bound, {plain_gap:7.1f} ms in {plain_seconds:.1f} s "
                f"without;  nothing: {idle_gaps[-1]:.1f} ms",
                flush=True,
            )
    worst = max(*gaps, *cpu_gaps)
    print_result(
        args,
        "rubrics",
        ratio=round(BUDGET_MS / worst, 2),
        target=1.0,
        us_per_trace=round(median(alone), 1),
        us_per_trace_with_reading=round(median(whole), 1),
        longest_gap_ms=round(worst, 1),
        longest_gap_ms_of_nothing=round(max(idle_gaps), 1),
        longest_gap_ms_without_processes=round(median(plain_gaps), 1),
        options=vars(args),
        versions={"python": platform.python_version()},
    )


if __name__ == "__main__":
    main()
