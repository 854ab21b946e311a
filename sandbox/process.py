"""A program in the background of a session."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from vf.runtime.errors import SandboxError
from vf.sandbox.call import STREAMS, output, result, with_output
from vf.sandbox.contract import ExecResult, Output
from vf.sandbox.ends import Ends
from vf.sandbox.frames import OUTPUT_WINDOW, Frame, FrameError

KEPT = 100_000  # bytes of each stream that `wait` keeps, as `exec` does by default
PIECE = 2**16


class SessionProcess:
    """Implements :class:`~vf.sandbox.contract.Process` over a session.

    Args:
        send: A function that sends the supervisor a frame for this program.
        kill: A function that lets the supervisor kill it, and returns once nothing is left.
    """

    def __init__(self, send: Callable[..., None], kill: Callable[[], Awaitable[None]]) -> None:
        self._send, self._kill = send, kill
        self._pieces: deque[tuple[int, bytearray]] = deque()  # received and unread
        self._unread = self._unacked = 0  # bytes of those; bytes taken and not acknowledged
        self._ends = {stream: Ends(KEPT) for stream in STREAMS}
        self._begun = self._reading = False
        self._waiting = 0  # callers that wait for the end
        self._answer: Frame | None = None
        self._gone = False
        self._error: SandboxError | None = None
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._sent = self._taken = 0
        self._open = True  # its standard input

    @property
    def ended(self) -> bool:
        """Whether it has a result, whatever happens to the sandbox."""
        return self._answer is not None

    def take(self, header: dict[str, Any], parts: list[bytes]) -> None:
        """Take a frame of the supervisor.

        Raises:
            FrameError: If it has more output than requested.
        """
        if "out" in header:
            self._add(header["out"], parts[0])
            self._unread += len(parts[0])
            if self._unread + self._unacked > OUTPUT_WINDOW:
                raise FrameError("a program's output is more than was asked for")
        elif "ack" in header:
            self._taken += int(header["ack"])
            self._open = self._open and bool(header["open"])
        elif "returncode" in header:
            for stream, data in enumerate((parts[0] + parts[1], parts[2] + parts[3]), start=1):
                if data:
                    self._add(stream, data)
            self._answer = header, []
            self._gone = self._gone or "gone" in header  # it was never there
        elif "gone" in header:
            self._gone = True
        self._change()

    def fail(self, error: SandboxError) -> None:
        """Fail because the sandbox is lost."""
        self._error = self._error or error
        self._change()

    async def __aiter__(self) -> AsyncGenerator[Output]:
        """Yield its output; see :meth:`Process.__aiter__`."""
        if self._begun:
            raise RuntimeError("its output is being read, or was: that works only once")
        self._begun = self._reading = True
        try:
            while self._pieces or not self.ended:
                if self._pieces:
                    yield output(*self._pop())
                else:
                    await self._next_change()
        finally:
            self._reading = False
            self._change()

    async def write(self, data: bytes) -> None:
        """Send its standard input bytes, and wait until its pipe has them."""
        async with self._writing:
            for start in range(0, len(data), PIECE):
                piece = data[start : start + PIECE]
                self._check_input()
                self._sent += len(piece)
                self._send(piece)
                while self._taken < self._sent and self._open and not self._gone:
                    await self._next_change()
                self._check_input()

    async def end_input(self) -> None:
        """Close its standard input."""
        async with self._writing:
            if self._open and not self._gone:
                self._open = False
                self._send(end=True)

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait until it has ended; see :meth:`Process.wait`."""
        self._waiting += 1
        try:
            self._drain()
            async with asyncio.timeout(timeout):
                while self._answer is None:
                    await self._next_change()
            self._drain()
        finally:
            self._waiting -= 1
        kept = (ends.kept() for ends in self._ends.values())
        return result(with_output(self._answer[0], *kept))

    async def kill(self) -> None:
        """End it with everything that it started."""
        if not self._gone:
            await self._kill()

    def _check_input(self) -> None:
        if not self._open or self._gone:
            raise BrokenPipeError("the program does not read its standard input any more")

    def _add(self, stream: int, data: bytes) -> None:
        """Append it to the last piece: many small ones would take much memory."""
        output(stream, data)
        if not self._pieces or self._pieces[-1][0] != stream:
            self._pieces.append((stream, bytearray()))
        self._pieces[-1][1].extend(data)

    def _pop(self) -> tuple[int, bytes]:
        """Take the next piece; acknowledge larger amounts, so that the program can write more."""
        stream, data = self._pieces.popleft()
        if self._answer is None:
            self._unread -= len(data)
            self._unacked += len(data)
            if self._unacked >= OUTPUT_WINDOW // 2:
                self._send(took=self._unacked)
                self._unacked = 0
        return stream, bytes(data)

    def _drain(self) -> None:
        """Move unread output to the ends that the result keeps, if a caller waits for it."""
        while self._pieces and self._waiting and not self._reading:
            stream, data = self._pop()
            self._ends[stream].add(data)

    def _change(self) -> None:
        self._drain()
        self._changed.set()

    async def _next_change(self) -> None:
        """Wait until anything has changed.

        Raises:
            SandboxError: If the sandbox is lost.
        """
        if self._error is not None:
            raise SandboxError(*self._error.args)
        self._changed.clear()
        await self._changed.wait()
