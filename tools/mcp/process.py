"""The processes of a server that was started by a command: what they say, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

LAST = 2000  # characters of standard error that are kept
GRACE = 2.0  # seconds that a server gets to end by itself once its input is closed
_DRAIN = 1.0  # seconds to wait for the last words of a server that has ended

# The client starts a server as the leader of a process group, and tells nobody its number. So a
# shell tells it, on the first line of standard error, and turns into the server.
_TELL = 'echo $$ >&2; exec "$@"'


class ServerProcess(asyncio.Protocol):
    """One run of a server's command, its children included."""

    def __init__(self) -> None:
        self._said = b""
        self._group: int | None = None
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def wrapped(command: Sequence[str]) -> list[str]:
        """Return the command line that tells its process group and then is the command."""
        return ["/bin/sh", "-c", _TELL, "sh", *command]

    @property
    def last_words(self) -> str:
        """The end of what it said on standard error."""
        return self._said.decode(errors="replace").strip()[-LAST:]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[TextIO]:
        """Yield what to give the command as standard error; end all its processes on the way out.

        The pipe is read all the time: a server that talks a lot must not stand still.
        """
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        with os.fdopen(writing, "w") as stderr:
            pipe, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(reading, "rb", 0))
            try:
                yield stderr
            finally:
                if self._timer is not None:
                    self._timer.cancel()
                self.kill()
                stderr.close()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_DRAIN):
                        await self._ended.wait()
                pipe.close()

    def give_notice(self) -> None:
        """Kill whatever still runs a while from now: its input is about to be closed."""
        self._timer = asyncio.get_running_loop().call_later(GRACE, self.kill)

    def kill(self) -> None:
        """End the server and its children at once. Safe to call at any time."""
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def data_received(self, data: bytes) -> None:
        """Take what it says."""
        self._said += data
        if self._group is None:
            first, newline, rest = self._said.partition(b"\n")
            if not newline:
                return
            self._group, self._said = int(first), rest
        self._said = self._said[-4 * LAST :]

    def connection_lost(self, exc: Exception | None) -> None:
        """All its processes have ended, or have closed their standard error."""
        self._ended.set()
