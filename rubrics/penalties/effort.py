"""Process penalties on what a rollout spent: tool calls, turns, tokens, time.

All are computed from typed events and token counts, never from text that a model can imitate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from vf.rubrics.penalties.text import same_call, sampled_calls, sampled_text
from vf.rubrics.penalties.unread import no_such_tools, no_tools, tool_names, warn_unread
from vf.rubrics.rubric import Penalty
from vf.runtime.calling import instant
from vf.runtime.errors import ConfigError, RubricError
from vf.traces.trace import ToolEvent, Trace


def tool_errors(weight: float = 0.1) -> Penalty:
    """Share of the tool calls that were malformed, invalid, unknown or rejected.

    Range: [0, 1]; 0 without calls, and None in an environment without tools.

    Formula: failed calls / calls.

    Source: our own; the kinds are those of :class:`~vf.traces.trace.ToolEvent`.

    Known ways to game it: pad with valid calls, which :func:`extra_tool_calls` makes costly; or
    make no calls at all, which only the outcome can punish.
    """

    def tool_errors(trace: Trace) -> float | None:
        if no_tools(trace, "tool_errors"):
            return None
        events = trace.tool_events
        return sum(event.kind != "ok" for event in events) / len(events) if events else 0.0

    @instant
    def failed_by_turn(trace: Trace) -> list[float]:
        return _by_turn(trace, [event for event in trace.tool_events if event.kind != "ok"])

    return Penalty(tool_errors, weight, turns=failed_by_turn)


def extra_tool_calls(weight: float = 0.1, free: int | str = 0, scale: int = 4) -> Penalty:
    """Tool calls beyond what the task needs.

    Range: [0, 1]; None in an environment without tools.

    Formula: min(1, max(0, calls − free) / scale).

    Source: our own; a linear ramp.

    Known ways to game it: one call that does the work of many, if a tool allows it (a script, a
        batch); fewer calls than the task needs, and a guess.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        free: Calls that cost nothing: a number, or the key of ``task.info`` that holds it.
        scale: Calls beyond that at which the penalty is 1.

    Raises:
        ConfigError: ``scale`` is below 1.
    """

    @instant
    def beyond_by_turn(trace: Trace) -> list[float]:
        return _by_turn(trace, trace.tool_events[_allowed(trace, free) :])

    def calls(trace: Trace) -> int | None:
        return None if no_tools(trace, "extra_tool_calls") else len(trace.tool_events)

    ramp = _ramp("extra_tool_calls", calls, free, scale, weight)
    return replace(ramp, turns=beyond_by_turn)


def extra_turns(weight: float = 0.1, free: int | str = 1, scale: int = 4) -> Penalty:
    """Turns beyond what the task needs.

    Range: [0, 1].

    Formula: min(1, max(0, turns − free) / scale).

    Source: our own; a linear ramp over the steps of the episode.

    Known ways to game it: several tool calls in one turn, which :func:`extra_tool_calls` counts;
    longer turns, which :func:`verbosity` counts.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        free: Turns that cost nothing: a number, or the key of ``task.info`` that holds it.
        scale: Turns beyond that at which the penalty is 1.

    Raises:
        ConfigError: ``scale`` is below 1.
    """
    return _ramp("extra_turns", lambda trace: len(trace.turns), free, scale, weight)


def tool_cost(
    prices: Mapping[str, float], budget: float, weight: float = 0.1, *, other: float = 0.0
) -> Penalty:
    """The cost of the tool calls, by a price list.

    Every call that reached a tool or could have is charged, including failed ones.

    Range: [0, 1]; None in an environment without tools, or with none that has a price.

    Formula: min(1, Σ price(call) / budget).

    Source: our own; a budget, as in pay-per-call pricing.

    Known ways to game it: few calls that each do much, if the price does not depend on the
        arguments; a tool that has no price.

    Args:
        prices: Price of one call by tool name, in any unit; 0 is free.
        budget: The cost at which the penalty is 1, in the same unit.
        weight: Share of the outcome that a penalty of 1 costs.
        other: Price of a tool that is not in the list.

    Raises:
        ConfigError: If a price is negative or not finite, all are 0, or the budget is not positive.
    """
    for name, price in {**prices, "other": other}.items():
        if not 0.0 <= price < math.inf:
            raise ConfigError(f"tool_cost: the price of {name!r} must be at least 0, got {price}")
    if not 0.0 < budget < math.inf:
        raise ConfigError(f"tool_cost: budget must be positive, got {budget}")
    if not any(prices.values()) and not other:
        raise ConfigError("tool_cost: every price is 0, so nothing costs anything")
    prices = dict(prices)

    def tool_cost(trace: Trace) -> float | None:
        priced = bool(other) or not prices.keys().isdisjoint(tool_names(trace))
        if no_such_tools(trace, "tool_cost", prices, priced):
            return None
        spent = sum(prices.get(event.name, other) for event in trace.tool_events)
        return min(1.0, spent / budget)

    return Penalty(tool_cost, weight)


def repeated_calls(weight: float = 0.1, scale: int = 4, ignore: Collection[str] = ()) -> Penalty:
    """Tool calls that repeat an earlier one, with the same arguments.

    Range: [0, 1]; None in an environment without tools.

    Formula: min(1, repeats / scale), a repeat being a call with the name and the arguments of an
    earlier call; the order of the arguments and spaces between them do not matter.

    Source: our own; loops of the same call are the most common failure of stuck agents.

    Known ways to game it: varying an argument that does not matter (a space inside a text, an
        unused option); :func:`extra_tool_calls` still counts such a call.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        scale: Repeats at which the penalty is 1.
        ignore: Tools that may be called again with the same arguments, because the world has
            changed meanwhile (running the tests, listing a folder).

    Raises:
        ConfigError: ``scale`` is below 1.
    """
    ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)

    def repeats(trace: Trace) -> int | None:
        if no_tools(trace, "repeated_calls"):
            return None
        keys = [same_call(call) for call in sampled_calls(trace) if call.name not in ignored]
        return len(keys) - len(set(keys))

    return _ramp("repeated_calls", repeats, 0, scale, weight)


def verbosity(weight: float = 0.1, free: int = 256, scale: int = 256) -> Penalty:
    """Sampled tokens beyond a soft limit.

    Range: [0, 1]; None if an API does not report the tokens.

    Formula: min(1, max(0, tokens − free) / scale). With free = L_max − L_cache and
    scale = L_cache it is the soft overlong punishment, with its sign changed.

    Source: DAPO (arXiv:2503.14476), equation 13.

    Known ways to game it: none by splitting turns, or by having a sub-agent write, because all
        tokens are counted; terse answers without reasoning, if ``free`` is below what the task
        needs.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        free: Tokens that cost nothing, over all turns.
        scale: Tokens beyond that at which the penalty is 1.

    Raises:
        ConfigError: ``scale`` is below 1.
    """

    def tokens(trace: Trace) -> int | None:
        if trace.completion_tokens or not sampled_text(trace):
            return trace.completion_tokens
        warn_unread(trace.environment, "verbosity", "the model's API does not tell the tokens")
        return None

    return _ramp("verbosity", tokens, free, scale, weight)


def code_timeouts(weight: float = 0.1, scale: int = 2) -> Penalty:
    """The model's code that was killed for taking too long, in its tool calls and in grading.

    Range: [0, 1]; None where the environment does not count them.

    Formula: min(1, timeouts / scale), as counted in ``trace.info["code_timeouts"]``.

    Source: our own; a linear ramp.

    Known ways to game it: code that gives up just before its time is up.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        scale: Timeouts at which the penalty is 1.

    Raises:
        ConfigError: ``scale`` is below 1.
    """

    def timeouts(trace: Trace) -> int | None:
        if "code_timeouts" in trace.info or not trace.turns:
            return int(trace.info.get("code_timeouts", 0))
        why = 'step puts no Step.info["code_timeouts"] into the trace'
        warn_unread(trace.environment, "code_timeouts", why)
        return None

    return _ramp("code_timeouts", timeouts, 0, scale, weight)


def _ramp(
    name: str, count: Callable[[Trace], int | None], free: int | str, scale: int, weight: float
) -> Penalty:
    """Return the penalty min(1, max(0, count − free) / scale); None where there is no count."""
    if scale < 1:
        raise ConfigError(f"{name}: scale must be at least 1, got {scale}")

    def ramp(trace: Trace) -> float | None:
        if (counted := count(trace)) is None:
            return None
        return min(1.0, max(0, counted - _allowed(trace, free)) / scale)

    ramp.__name__ = name  # by which a rubric records it, and errors call it
    return Penalty(ramp, weight)


def _by_turn(trace: Trace, events: Iterable[ToolEvent]) -> list[float]:
    counts = Counter(event.turn for event in events)
    return [float(counts[turn]) for turn in range(len(trace.turns))]


def _allowed(trace: Trace, free: int | str) -> int:
    if not isinstance(free, str):
        return free
    if free not in trace.task.info:
        raise RubricError(f"free = {free!r}, but task {trace.task.id!r} has no info[{free!r}]")
    return int(trace.task.info[free])
