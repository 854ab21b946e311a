"""A trace of one question and one answer, and scoring it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import vf


def answered(reply: str, answer: Any, **info: Any) -> vf.Trace:
    """Return the trace of a rollout whose last message is ``reply``."""
    trace = vf.Trace("test", vf.Task("the-task", "Question?", answer, info), seed=0)
    trace.messages = [vf.Message("user", "Question?"), vf.Message("assistant", reply)]
    trace.prompt_messages = 1
    return trace


def score(outcome: Callable[[vf.Trace], Any], reply: str, answer: Any, **info: Any) -> float:
    """Return what an outcome gives for a reply."""
    trace = answered(reply, answer, **info)

    async def run() -> float:
        value = outcome(trace)
        return float(await value if inspect.isawaitable(value) else value)

    return asyncio.run(run())
