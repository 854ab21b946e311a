"""The supervisor's event loop, and its buffered readers and writers of pipes."""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import time
from typing import Callable, List, Optional  # noqa: UP035  (Python 3.9 runs this)

from vf.sandbox.ends import Ends

CHUNK = 2**16
LONGEST_WAIT = 3600.0  # seconds: epoll takes no more than 24 days
Timer = List[Optional[Callable[[], None]]]  # noqa: UP006, UP045


class Loop:
    """epoll and timers. Every descriptor in it is non-blocking."""

    def __init__(self) -> None:
        """Make an empty loop."""
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0
        self.stopped = False

    def watch(self, fd: int, handler: Callable[[], None], *, write: bool = False) -> None:
        """Call the handler whenever the descriptor can be read (or written), or has ended."""
        events = select.EPOLLOUT if write else select.EPOLLIN
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """Stop watching; the descriptor stays open."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self, fd: int) -> None:
        """Stop watching and close."""
        self.forget(fd)
        os.close(fd)

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call it once after ``seconds``; clear the list that is returned to prevent it."""
        self._count += 1
        timer: Timer = [call]
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, timer))
        return timer

    def run(self) -> None:
        """Serve until ``stopped`` is set."""
        while not self.stopped:
            while self._timers and not self._timers[0][2]:
                heapq.heappop(self._timers)
            wait = LONGEST_WAIT
            if self._timers:
                wait = min(wait, max(self._timers[0][0] - time.monotonic(), 0.0))
            for fd, _ in self._epoll.poll(wait):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            while self._timers and self._timers[0][0] <= time.monotonic():
                timer = heapq.heappop(self._timers)[2]
                if timer and timer[0] is not None:
                    timer[0]()


class Outlet:
    """Writes to a descriptor that may not take everything at once."""

    def __init__(self, loop: Loop, fd: int, written: Callable[[int], None] | None = None) -> None:
        """Write to ``fd``; ``written`` gets the number of bytes written or dropped."""
        self._loop = loop
        self._fd = fd
        self._written = written
        self._pending = bytearray()
        self._ending = False
        self.open = True
        os.set_blocking(fd, False)

    def __len__(self) -> int:
        """Return how many bytes wait."""
        return len(self._pending)

    def send(self, data: bytes) -> None:
        """Write, now or when there is room. What cannot be written any more is dropped."""
        if not self.open:
            self._tell(len(data))
            return
        waiting = bool(self._pending)
        self._pending += data
        if not waiting:
            self._flush()

    def end(self) -> None:
        """Close after what is waiting."""
        self._ending = True
        if self.open and not self._pending:
            self.close()

    def close(self) -> None:
        """Close now; drop what is waiting."""
        if self.open:
            self.open = False
            self._loop.close(self._fd)
            dropped = len(self._pending)
            self._pending.clear()
            self._tell(dropped)

    def _tell(self, count: int) -> None:
        if count and self._written is not None:
            self._written(count)

    def _flush(self) -> None:
        try:
            count = 0
            while self._pending:
                with memoryview(self._pending) as view:
                    n = os.write(self._fd, view[: 16 * CHUNK])
                del self._pending[:n]
                count += n
        except BlockingIOError:
            self._loop.watch(self._fd, self._flush, write=True)
        except OSError:
            self.close()
        else:
            self._loop.forget(self._fd)
        self._tell(count)
        if self._ending:
            self.end()


class Capture:
    """Reads what a program writes, while it runs, and keeps the head and the tail of it."""

    def __init__(self, loop: Loop, fd: int, limit: int) -> None:
        """Read from ``fd`` until it ends; keep at most ``limit`` bytes."""
        self._loop = loop
        self._fd = fd
        self.open = True
        self.keep(limit)
        os.set_blocking(fd, False)
        loop.watch(fd, self._ready)

    def keep(self, limit: int) -> None:
        """Drop what was read, and keep at most ``limit`` bytes from now on."""
        self._ends = Ends(limit)

    def _ready(self) -> None:
        self._read(CHUNK)

    def _read(self, most: int) -> int:
        try:
            data = os.read(self._fd, most)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
        self._add(data)
        return len(data)

    def _add(self, data: bytes) -> None:
        self._ends.add(data)

    def take(self) -> tuple[bytes, bytes, int]:
        """Return head, tail and how many bytes between them are missing.

        What has been written by now is in it; what is still being written is not waited for.
        """
        left = 2**20
        while self.open and left > 0:
            count = self._read(CHUNK)
            left = left - count if count else 0
        return self._ends.kept()

    def close(self) -> None:
        """Stop reading."""
        if self.open:
            self.open = False
            self._loop.close(self._fd)
