"""Process penalties, each in [0, 1], computed from typed events and token counts."""

from __future__ import annotations

from vf.rubrics.rubric import Penalty
from vf.traces.errors import ConfigError
from vf.traces.trace import Trace


def tool_errors(weight: float = 0.1) -> Penalty:
    """Share of the tool calls that were malformed, invalid, unknown or rejected.

    Formula: failed calls / calls, 0 without calls. Known way to game it: pad with valid calls,
    which :func:`extra_tool_calls` makes costly.
    """

    def tool_errors(trace: Trace) -> float:
        events = trace.tool_events
        return sum(event.kind != "ok" for event in events) / len(events) if events else 0.0

    return Penalty(tool_errors, weight)


def extra_tool_calls(weight: float = 0.1, free: int | str = 0, scale: int = 4) -> Penalty:
    """Tool calls beyond what the task needs.

    Formula: min(1, max(0, calls − free) / scale).

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        free: How many calls cost nothing: a number, or the key of ``task.info`` that holds it.
        scale: How many calls beyond that make the penalty 1.

    Raises:
        ConfigError: ``scale`` is below 1.
    """
    if scale < 1:
        raise ConfigError(f"extra_tool_calls: scale must be at least 1, got {scale}")

    def extra_tool_calls(trace: Trace) -> float:
        allowed = trace.task.info[free] if isinstance(free, str) else free
        return min(1.0, max(0, len(trace.tool_events) - allowed) / scale)

    return Penalty(extra_tool_calls, weight)


def verbosity(weight: float = 0.1, free: int = 256, scale: int = 256) -> Penalty:
    """Sampled tokens beyond a soft limit.

    Formula: min(1, max(0, tokens − free) / scale): the linear ramp of DAPO's soft overlong
    punishment (arXiv:2503.14476, eq. 13), as a penalty.

    Raises:
        ConfigError: ``scale`` is below 1.
    """
    if scale < 1:
        raise ConfigError(f"verbosity: scale must be at least 1, got {scale}")

    def verbosity(trace: Trace) -> float:
        return min(1.0, max(0, trace.completion_tokens - free) / scale)

    return Penalty(verbosity, weight)
