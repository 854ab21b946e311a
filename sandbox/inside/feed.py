"""Streams a program's output to the client while it runs, no faster than the client takes it."""

from __future__ import annotations

from typing import Callable  # noqa: UP035  (Python 3.9 runs this)

from vf.sandbox.frames import OUTPUT_WINDOW
from vf.sandbox.inside.box import Box
from vf.sandbox.inside.loop import CHUNK, Capture

REST = 4 * 2**20  # bytes: more than a pipe can hold at the end


class Flow:
    """The window of a program's output on its way to the client, which its streams share.

    Args:
        box: The supervisor's state.
        send: Called with the stream, 1 or 2, and what it brought.
    """

    def __init__(self, box: Box, send: Callable[[int, bytes], None]) -> None:
        self.box, self.send = box, send
        self._window = OUTPUT_WINDOW
        self._waiting: list[Feed] = []

    def took(self, count: int) -> None:
        """Send more: the client has taken so many bytes."""
        self._window += count
        waiting, self._waiting = self._waiting, []
        for feed in waiting:
            feed.resume()

    def room(self, feed: Feed) -> int:
        """Return how many bytes may be sent now; where none, the feed is resumed later."""
        if self.box.full(feed.resume):
            return 0
        if self._window <= 0:
            self._waiting.append(feed)
        return min(self._window, CHUNK)

    def pass_on(self, stream: int, data: bytes) -> None:
        """Send bytes for which there was room."""
        self._window -= len(data)
        self.send(stream, data)


class Feed(Capture):
    """One stream. What is in it when the program ends is taken as from any other."""

    def __init__(self, flow: Flow, stream: int, fd: int) -> None:
        """Read from ``fd``, and send what comes."""
        self._flow, self._stream = flow, stream
        self._live = True
        super().__init__(flow.box.loop, fd, REST)

    def keep(self, limit: int) -> None:
        """Send nothing more once the program has ended."""
        self._live = limit > 0
        super().keep(limit)
        if not self._live:
            self.resume()

    def take(self) -> tuple[bytes, bytes, int]:
        """Return what was not sent."""
        self._live = False
        return super().take()

    def resume(self) -> None:
        """Read on."""
        if self.open:
            self._loop.watch(self._fd, self._ready)

    def _ready(self) -> None:
        room = self._flow.room(self) if self._live else CHUNK
        if room:
            self._read(room)
        else:
            self._loop.forget(self._fd)

    def _add(self, data: bytes) -> None:
        if not self._live:
            super()._add(data)
        elif data:
            self._flow.pass_on(self._stream, data)
