"""Whose terminal it is: a run in the background is not stopped by it, and steals no keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def in_foreground(terminal: int) -> bool:
    """Return whether this process has the terminal's attention, so that it may draw and read.

    Args:
        terminal: A file descriptor of the terminal.
    """
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        # Not our session's terminal: a launcher of several processes keeps it for us.
        return _launcher_in_foreground()


def _launcher_in_foreground() -> bool:
    try:
        text = Path(f"/proc/{os.getppid()}/stat").read_text()
    except OSError:
        return False
    # From behind the name, which may hold anything: state, parent, group, session, terminal, and
    # the terminal's group in the foreground (proc(5)).
    _, _, group, _, terminal, foreground, *_ = text.rpartition(")")[2].split()
    return terminal != "0" and group == foreground


@contextmanager
def unstoppable() -> Iterator[None]:
    """Let this thread use a terminal from the background without being stopped for it."""
    if not hasattr(signal, "SIGTTOU"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU, signal.SIGTTIN})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
