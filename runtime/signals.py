"""Stopping cleanly on a signal, and when the parent process is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

POLL_SECONDS = 1.0


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

    Only the first counts: no second one shall interrupt the closing.

    Args:
        launched: Whether a launcher started this process. It passes Ctrl-C on, and kills what
            has not ended half a minute later; without one, a second Ctrl-C still ends at once.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    numbers = [signal.SIGTERM, signal.SIGHUP, *([signal.SIGINT] if launched else [])]
    # What is ignored stays so: nohup asks for it.
    numbers = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]

    # Asked now: of a terminal that is gone, isatty says no.
    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def end(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGHUP:
            _forget(terminals)
        raise Terminated(number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _forget(terminals: list[int]) -> None:
    """Write to nowhere from now on: the terminal is gone, and writing to it would raise."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for terminal in terminals:
        os.dup2(nowhere, terminal)


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
