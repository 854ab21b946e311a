"""Calling a user's function, be it a coroutine or plain, without holding up anybody else."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function, or run a plain function in a thread of its own.

    The thread is a daemon: when the caller stops waiting (a deadline, a cancellation), a
    function that hangs is left behind and cannot keep the process alive. Pools join their
    threads at exit, so a pool would.

    Raises:
        RuntimeError: The function raised what asyncio gives a meaning of its own: SystemExit,
            StopIteration, or a CancelledError that nobody asked for. Anything else passes.
    """
    try:
        if inspect.iscoroutinefunction(fn):
            return await fn(*args, **kwargs)
        result = await _in_thread(fn, args, kwargs)
        return await result if inspect.isawaitable(result) else result
    except SystemExit as error:
        raise RuntimeError(f"raised SystemExit({error.code!r})") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("was cancelled from the inside") from error


async def _in_thread(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses it
            future.set_exception(RuntimeError(f"raised StopIteration({error.value!r})"))
        else:
            future.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = context.run(fn, *args, **kwargs)
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop has closed: nobody waits for the result any more

    threading.Thread(target=run, daemon=True, name=f"vf-{_label(fn)}").start()
    return await future


def _label(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
