"""Wait for a condition, and fail when it takes too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def _pauses(condition: Callable[[], T], seconds: float) -> Iterator[tuple[T, float]]:
    """Yield what the condition returns, and how long to wait before it is checked again."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        late = time.monotonic() > deadline  # read first: the last check is made after the deadline
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
