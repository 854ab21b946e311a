"""Deadlines that pause while something with its own deadline runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class _Clock:
    """The time that is left in a :func:`clocked` block."""

    def __init__(self, deadline: asyncio.Timeout, outer: _Clock | None) -> None:
        self.deadline, self.outer = deadline, outer
        self.loop = asyncio.get_running_loop()
        self.ended = False
        self._stops = 0
        self._left = 0.0

    def stop(self) -> None:
        """Stop, with those around it, until every stop has been followed by a :meth:`go`."""
        if self.outer is not None:
            self.outer.stop()
        self._stops += 1
        when = self.deadline.when()
        if self._stops == 1 and when is not None and not self._is_over():
            self._left = when - self.loop.time()
            self.deadline.reschedule(None)

    def go(self) -> None:
        """Run again."""
        if self.outer is not None:
            self.outer.go()
        self._stops -= 1
        if self._stops == 0 and not self._is_over():
            self.deadline.reschedule(self.loop.time() + self._left)

    def _is_over(self) -> bool:
        return self.ended or self.deadline.expired()


_clock: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@asynccontextmanager
async def clocked(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Be ``asyncio.timeout``, but do not count what runs within :func:`own_deadline`.

    Raises:
        TimeoutError: If the time is over.
    """
    async with asyncio.timeout(seconds) as deadline:
        outer = _clock.get()
        here = outer is not None and outer.loop is asyncio.get_running_loop()
        clock = _Clock(deadline, outer if here else None)
        token = _clock.set(clock)
        try:
            yield deadline
        finally:
            clock.ended = True
            _clock.reset(token)


@contextmanager
def own_deadline() -> Iterator[None]:
    """Stop the clocks of the :func:`clocked` blocks around this one, which has its own deadline."""
    clock = _clock.get()
    if clock is None or clock.loop is not asyncio.get_running_loop():
        yield
        return
    clock.stop()
    try:
        yield
    finally:
        clock.go()
