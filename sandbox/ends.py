"""The head and the tail of a program's output. This file runs on both sides, like frames.py."""

from __future__ import annotations

from typing import Tuple  # noqa: UP035  (Python 3.9 runs this too)

SLACK = 2**18  # bytes beyond the tail after which it is cut


class Ends:
    """Keeps the first and the last of any number of bytes."""

    def __init__(self, limit: int) -> None:
        """Keep at most ``limit`` bytes."""
        self._first, self._last = limit - limit // 2, limit // 2
        self._head, self._tail, self._missing = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        room = self._first - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._last + SLACK:
            self._cut()

    def _cut(self) -> None:
        excess = len(self._tail) - self._last
        if excess > 0:
            del self._tail[:excess]
            self._missing += excess

    def kept(self) -> Tuple[bytes, bytes, int]:  # noqa: UP006
        """Return head, tail and the number of missing bytes between them."""
        self._cut()
        return bytes(self._head), bytes(self._tail), self._missing
