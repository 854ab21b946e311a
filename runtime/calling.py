"""Calling a user's function, plain or a coroutine, without blocking anything else."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vf.runtime.workers import in_thread

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_INSTANT = "__vf_instant__"


def instant(fn: F) -> F:
    """Mark a plain function of the library that never blocks: :func:`call` needs no thread."""
    setattr(fn, _INSTANT, True)
    return fn


def carry_out(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine in a loop and a thread of its own, and wait for what it returns.

    For plain functions, which may well be called where a loop is running: in a notebook, say.
    """
    with ThreadPoolExecutor(1, "vf-apart") as thread:
        return thread.submit(asyncio.run, work).result()


async def call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function, or run a plain function in a thread, where it may block.

    Raises:
        RuntimeError: If the function raised what asyncio gives a meaning of its own: SystemExit,
            StopIteration, or a CancelledError that nobody asked for. Anything else passes.
    """
    try:
        if getattr(fn, _INSTANT, False) or inspect.iscoroutinefunction(fn):
            result = fn(*args, **kwargs)
        else:
            result = await in_thread(fn, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result
    except SystemExit as error:
        raise RuntimeError(f"raised SystemExit({error.code!r})") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("was cancelled from the inside") from error


async def call_for_text(fn: Callable[..., Any], /, *args: Any) -> str | None:
    """Call an agent's function, and return what it returns as text.

    Anything but a text or None becomes JSON, or else what ``str`` makes of it: what an agent
    returns may be of its model's choosing, so that no kind of value is a failure.

    Raises:
        RuntimeError: If :func:`call` would raise it. Whatever else the function raises passes.
    """
    result = await call(fn, *args)
    if isinstance(result, str | None):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(result)
