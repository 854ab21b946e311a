"""The event loop in which Gymnasium's synchronous calls are carried out: one thread a process."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from vf.runtime.errors import EnvironmentFailure

T = TypeVar("T")
START_TIMEOUT = 60.0  # seconds that a thread gets to start
END_TIMEOUT = 60.0  # seconds that whatever still runs has to end, containers of a pool included


class BackgroundLoop:
    """An event loop in a thread of its own. It lives for as long as somebody holds it.

    All environments of a process share it, and with it whatever is shared in a loop, such as a
    pool of sandboxes. The last one that lets go ends it, which cancels what still runs.

    Raises:
        EnvironmentFailure: It does not start.
    """

    def __init__(self) -> None:
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vf-gym", daemon=True)
        self._thread.start()
        if not self._running.wait(START_TIMEOUT):
            raise EnvironmentFailure(f"the event loop did not start in {START_TIMEOUT:g} s")

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float) -> T:
        """Carry out a coroutine and return what it returns.

        Args:
            work: What to do.
            timeout: Seconds after which the loop must be blocked, for ``work`` has a deadline
                itself.

        Raises:
            EnvironmentFailure: It did not answer in time. Anything that ``work`` raises passes.
        """
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result(timeout)
        except concurrent.futures.CancelledError:
            raise EnvironmentFailure("the environment was closed while it worked") from None
        except TimeoutError:
            if done.done():
                raise
            done.cancel()
            raise EnvironmentFailure(
                f"the event loop did not answer for {timeout:g} s: a coroutine of the environment "
                "blocks it; make it a plain function, which runs in a thread"
            ) from None

    def end(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(END_TIMEOUT)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._stay())

    async def _stay(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        await self._stop.wait()


class _Shared:
    """The process's loop, and how many hold it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: BackgroundLoop | None = None
        self.holders = 0


_shared = _Shared()


def hold() -> BackgroundLoop:
    """Return the process's loop. It runs until everybody who held it has let go."""
    with _shared.lock:
        if _shared.loop is None:
            _shared.loop = BackgroundLoop()
        _shared.holders += 1
        return _shared.loop


def let_go() -> None:
    """Hold the loop no longer; the last one ends it."""
    with _shared.lock:
        _shared.holders -= 1
        if _shared.holders <= 0:
            _end()


def _end() -> None:
    loop, _shared.loop, _shared.holders = _shared.loop, None, 0
    if loop is not None:
        loop.end()


def _forget() -> None:
    """In a forked child, which has none of the threads."""
    global _shared
    _shared = _Shared()


# Closing a pool of sandboxes needs the standard library's thread pools. These refuse work from the
# end of the main thread on, which is before atexit; what is registered here after them comes first.
getattr(threading, "_register_atexit", atexit.register)(_end)
os.register_at_fork(after_in_child=_forget)
