"""Wait for a condition or the end of a process, and let time jump instead of waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
_monotonic = time.monotonic  # which a test may let jump


def _pauses(condition: Callable[[], T], seconds: float) -> Iterator[tuple[T, float]]:
    """Yield what the condition returns, and how long to wait before it is checked again."""
    deadline, pause = _monotonic() + seconds, 0.001
    while True:
        late = _monotonic() > deadline  # read first: the last check is made after the deadline
        yield condition(), pause
        assert not late, f"it did not happen within {seconds:g} s"
        pause = min(2 * pause, 0.05)


def wait_until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """Block until a condition holds.

    Args:
        condition: Called again and again, until it returns something true.
        seconds: After which to give up.

    Returns:
        What the condition returned.

    Raises:
        AssertionError: The condition did not hold in time.
    """
    for found, pause in _pauses(condition, seconds):
        if found:
            return found
        time.sleep(pause)
    raise AssertionError


async def until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """Do the same as :func:`wait_until` without blocking the event loop."""
    for found, pause in _pauses(condition, seconds):
        if found:
            return found
        await asyncio.sleep(pause)
    raise AssertionError


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not.

    Where its first thread has ended before others of a killed process, it still holds its files,
    and the ports that it listens on.
    """
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" or int(numbers[16]) > 1  # threads


class Clock:
    """The clocks of this process and of its event loops, which can jump ahead.

    With it a deadline that must not pass can be generous, and one that must pass does so at once.
    """

    def __init__(self) -> None:
        self._ahead = 0.0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace ``time.monotonic``, which event loops use, too, and ``time.perf_counter``."""

        def ahead_of(real: Callable[[], float]) -> Callable[[], float]:
            return lambda: real() + self._ahead

        patch.setattr(time, "monotonic", ahead_of(time.monotonic))
        patch.setattr(time, "perf_counter", ahead_of(time.perf_counter))

    def jump(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._ahead += seconds

    async def skip(self, seconds: float) -> None:
        """Let so many seconds pass at once, and the deadlines that are over by then take effect."""
        self.jump(seconds)
        for _ in range(3):  # the loop reads the clock, then calls back, then cancels
            await asyncio.sleep(0)
