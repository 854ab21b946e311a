"""Ctrl-C and other signals: stopping cleanly, also when the parent process is gone.

A signal becomes an exception in the main thread (:func:`orderly_end`). A training run then saves
the last step that has finished (``RLTrainer.train``) and stops what it started, the last first
(``CleanupStack``); its command ends with the signal's exit code (``vf.runtime.command``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

POLL_SECONDS = 1.0
AGAIN_SECONDS = 0.01  # until an interrupt that Python dropped is sent again

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """A signal asked this process to end; like Ctrl-C, no ``except Exception`` swallows it.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def orderly_end(*, launched: bool) -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into :class:`Terminated`, so that what is open gets closed.

    Only the first counts: no second one shall interrupt the closing. Python prints and drops what
    is raised in a finalizer or a weak reference's callback, and every import runs many of these:
    there, the interrupt is raised again a moment later.

    Args:
        launched: Whether a launcher started this process. It passes Ctrl-C on, and kills what
            has not ended half a minute later; without one, a second Ctrl-C still ends at once.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    numbers = _not_ignored(signal.SIGTERM, signal.SIGHUP, *([signal.SIGINT] if launched else []))
    forget_terminals = _terminals()
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if ending:
            return
        ending = True
        if number == signal.SIGHUP:
            forget_terminals()
        raise Terminated(number)

    def dropped(what: sys.UnraisableHookArgs) -> None:
        nonlocal ending
        if not isinstance(what.exc_value, KeyboardInterrupt):
            hook(what)
            return
        number = getattr(what.exc_value, "number", signal.SIGINT)
        ending = False
        # From a thread: raised in here, it would be dropped, too.
        with suppress(RuntimeError):  # Python ends, and starts none any more
            threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()

    before = {number: signal.signal(number, end) for number in numbers}
    hook, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def run_until_signal(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine, like :func:`asyncio.run`; SIGTERM and SIGHUP cancel it, as Ctrl-C does.

    Args:
        main: Makes the coroutine.

    Returns:
        Its result.

    Raises:
        Terminated: If a signal cancelled it; it has closed what was open. Only the first counts.
        KeyboardInterrupt: If Ctrl-C did.
    """
    numbers = _not_ignored(signal.SIGTERM, signal.SIGHUP)
    forget_terminals = _terminals()
    received: list[int] = []

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None

        def cancel(number: int) -> None:
            if not received:
                received.append(number)
                if number == signal.SIGHUP:
                    forget_terminals()
                task.cancel()

        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, cancel, number)
        return await main()

    before = {number: signal.getsignal(number) for number in numbers}
    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if received:
            raise Terminated(received[0]) from None
        raise
    finally:
        for number, handler in before.items():  # a loop that closes leaves none of them
            signal.signal(number, handler)


def _not_ignored(*numbers: int) -> list[int]:
    """Leave out the signals that are ignored, and stay so: nohup asks for it."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _terminals() -> Callable[[], None]:
    """Return what makes this process write to nowhere instead of to its terminals.

    That is for when they are gone, and writing to them would raise; isatty then says no already.
    """
    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def forget() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for terminal in terminals:
            os.dup2(nowhere, terminal)

    return forget


def is_alive(process: int) -> bool:
    """Return whether there is a process with this id, of this user or another."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def end_with_parent(started_by: int | None = None) -> None:
    """Send this process SIGTERM once its parent is gone, however that died.

    Args:
        started_by: The process that must be the parent, if that is known: it may be gone by now.
    """
    parent = os.getppid() if started_by is None else started_by

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="vf-parent", daemon=True).start()
