"""Traces for the tests of rewards, made by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import vf
from vf.traces.trace import Score, ToolEvent, ToolEventKind, Turn

Call = tuple[str, dict[str, Any] | str]


def make_trace(
    *said: str | list[Call],
    tokens: Sequence[int] = (),
    kinds: Sequence[ToolEventKind] = (),
    outcome: float | None = None,
    task: str = "t",
    tools: Sequence[str] = ("web", "bash", "search"),
    **info: Any,
) -> vf.Trace:
    """Return a trace in which the model said texts and made calls, one message each.

    Args:
        said: Texts, or lists of calls (name and arguments; text as it is, a dict as JSON).
        tokens: Sampled tokens per turn.
        kinds: What became of the calls, in order; ``ok`` by default.
        outcome: Scored so, if given.
        task: The task's id.
        tools: Names of the tools on offer.
        info: The task's info.
    """
    trace = vf.Trace(environment="e", task=vf.Task(task, "prompt", info=info), seed=0)
    trace.messages = [vf.Message("user", "prompt"), vf.Message("assistant", "not sampled")]
    trace.prompt_messages = 2
    trace.tools = [{"type": "function", "function": {"name": name}} for name in tools]
    for turn, each in enumerate(said):
        message = vf.Message("assistant", each if isinstance(each, str) else "")
        trace.messages.append(message)
        for name, arguments in each if isinstance(each, list) else ():
            number = len(trace.tool_events)
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            kind = kinds[number] if number < len(kinds) else "ok"
            broken = "broken" if kind == "malformed" else None
            message.tool_calls.append(vf.ToolCall(str(number), name, text, broken))
            trace.tool_events.append(ToolEvent(turn, str(number), name, kind))
            trace.messages.append(vf.Message("tool", "forbidden", tool_call_id=str(number)))
    trace.turns = [Turn(9, count, "stop", 0.1) for count in tokens or [1] * len(said)]
    if outcome is not None:
        trace.score = Score(outcome, outcome)
    return trace


def penalty_of(penalty: vf.Penalty, trace: vf.Trace) -> float:
    """Return what a penalty says of a trace, by way of a rubric."""
    rubric = vf.Rubric(outcome=lambda trace: 1.0, penalties=[penalty])
    [value] = asyncio.run(rubric.score(trace)).penalties.values()
    assert value is not None
    return value


def gate_of(gate: Any, trace: vf.Trace) -> bool:
    """Return what a gate says of a trace, by way of a rubric."""
    rubric = vf.Rubric(outcome=lambda trace: 1.0, gates=[gate])
    [value] = asyncio.run(rubric.score(trace)).gates.values()
    assert value is not None
    return value
