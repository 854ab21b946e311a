"""Calling a user's function, be it a coroutine or plain, without holding up anybody else."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function, or run a plain function in a thread of its own.

    The threads are daemons: when the caller stops waiting (a deadline, a cancellation), a
    function that hangs is left behind and cannot keep the process alive. The standard library's
    pools join their threads at exit, so they would.

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

    _submit(run)
    return await future


class _Worker(threading.Thread):
    """Runs jobs one after the other, and lies idle in between."""

    def __init__(self) -> None:
        super().__init__(name="vf-call", daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            self.jobs.get()()
            _idle.append(self)


# A worker whose job hangs never comes back here, so nobody waits behind it.
_idle: deque[_Worker] = deque()
os.register_at_fork(after_in_child=_idle.clear)


def _submit(job: Callable[[], None]) -> None:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.jobs.put(job)
