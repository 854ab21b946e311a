"""Penalties that find nothing to read report it once, instead of a 0 for every rollout."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable

from vf.traces.trace import Trace


def no_tools(trace: Trace, penalty: str) -> bool:
    """Return whether there were no tools to call; warn that the penalty then does not apply."""
    if _schema_names(trace) or trace.tool_events:
        return False
    warn_unread(trace.environment, penalty, "the environment has no tools")
    return True


def tool_names(trace: Trace) -> list[str]:
    """Return the names of the tools on offer, and of those that were called nevertheless."""
    return [*_schema_names(trace), *(event.name for event in trace.tool_events)]


def no_such_tools(trace: Trace, penalty: str, named: Iterable[str], matched: bool) -> bool:
    """Return whether none of the tools that a penalty names is there; warn of it.

    Args:
        trace: The rollout.
        penalty: The penalty's name.
        named: The tools that it names.
        matched: Whether one of them is among the :func:`tool_names`.
    """
    if no_tools(trace, penalty):
        return True
    if matched or not _schema_names(trace):
        return False
    missing, present = " or ".join(map(repr, named)), ", ".join(tool_names(trace))
    warn_unread(trace.environment, penalty, f"there is no tool {missing}; there are: {present}")
    return True


def _schema_names(trace: Trace) -> list[str]:
    tools = (tool for conversation in trace.conversations for tool in conversation.tools)
    return [*dict.fromkeys(tool["function"]["name"] for tool in tools)]


@functools.cache
def warn_unread(environment: str, penalty: str, why: str) -> None:
    """Warn, once in a process, that a penalty has nothing to read in an environment."""
    warnings.warn(
        f"environment {environment!r}: the penalty {penalty!r} has nothing to read: {why}. It does "
        "not apply, and costs nothing; leave it out of the rubric, or give it what it reads",
        stacklevel=3,
    )
