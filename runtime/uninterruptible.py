"""Work that no signal interrupts, such as importing torch, done where nothing has to wait for it.

An import or the loading of weights spends its time in C, and what a signal raises in the middle of
it may get lost. So it runs in a thread, and the main thread waits, which any signal ends at once.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

LOOK_SECONDS = 0.2

T = TypeVar("T")

_started: weakref.WeakSet[Future[Any]] = weakref.WeakSet()


def wait_for(work: Callable[[], T]) -> T:
    """Do some work in a thread and wait for it; an interrupt leaves the thread behind.

    Args:
        work: The function to call. It must own nothing that has to be closed.

    Returns:
        Its result; what it raises is raised here.
    """
    future = _start(work)
    # A signal that comes just before a lock is waited for does not end that wait: look again soon.
    while not wait([future], LOOK_SECONDS).done:
        pass
    return future.result()


async def await_for(work: Callable[[], T]) -> T:
    """Do some work in a thread and await it; a cancellation leaves the thread behind.

    Unlike after :func:`asyncio.to_thread`, the end of the event loop does not wait for it.

    Args:
        work: The function to call. It must own nothing that has to be closed.

    Returns:
        Its result; what it raises is raised here.
    """
    return await asyncio.wrap_future(_start(work))


def exit_if_left_behind(code: int) -> None:
    """End this process at once if some of the work was left behind and is still being done.

    Python would take itself apart around the thread, and C code in it may crash.

    Args:
        code: The exit code.
    """
    if not all(future.done() for future in _started):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _start(work: Callable[[], T]) -> Future[T]:
    future = in_daemon_thread(work, "vf-loading")
    _started.add(future)
    return future


def in_daemon_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Do work that may never return in a thread that does not outlive the process.

    Args:
        work: The function to call.
        name: The thread's name.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from here on, nobody cancels it

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
