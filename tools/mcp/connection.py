"""How an MCP server is reached through the official client, and the process it runs in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO, TypeAlias
from urllib.parse import urlsplit

from vf.runtime.extras import load

Transport = Literal["http", "sse"]
# What the client reads messages from, and what it writes them to.
Streams: TypeAlias = tuple[Any, Any]

LAST = 2000  # characters of standard error that are kept
GRACE = 2.0  # seconds that a server gets to end by itself once its input is closed
_DRAIN = 1.0  # seconds to wait for the last output of a server that has ended

# The client starts a server as the leader of a process group, but does not expose its number. So a
# shell prints it, on the first line of standard error, and then becomes the server.
_TELL = 'echo $$ >&2; exec "$@"'


@dataclass(frozen=True)
class Server:
    """A server: a command that speaks over its standard streams, or an address.

    What may hold a secret (``env``, ``headers``) is never shown.

    Attributes:
        command: The program and its arguments; None where there is a ``url``.
        url: The address of its endpoint.
        transport: How an address is spoken to: streamable HTTP, or the older SSE.
        env: Environment variables for the command, beside the few that every program needs.
        headers: HTTP headers.
        cwd: The command's working directory.
    """

    command: tuple[str, ...] | None
    url: str | None
    transport: Transport
    env: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    cwd: str | None

    @property
    def name(self) -> str:
        """What to call it in an error: the command, or the address without user and query."""
        if self.command is not None:
            return f"the MCP server `{shlex.join(self.command)}`"
        parts = urlsplit(self.url or "")
        return f"the MCP server at {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def connect(self, process: ServerProcess) -> AbstractAsyncContextManager[Streams]:
        """Return a context that starts the command, or connects to the address.

        Args:
            process: Keeps what a command says on its standard error, and ends its processes.
        """
        return _command(self, process) if self.command is not None else _address(self)


@asynccontextmanager
async def _command(server: Server, process: ServerProcess) -> AsyncIterator[Streams]:
    stdio: Any = load("mcp.client.stdio", "mcp")
    assert server.command is not None
    async with process.listening() as stderr:
        program, *args = process.wrapped(server.command)
        parameters = stdio.StdioServerParameters(
            command=program, args=args, env=dict(server.env), cwd=server.cwd
        )
        async with stdio.stdio_client(parameters, errlog=stderr) as streams:
            stderr.close()  # the server has its own end of the pipe
            try:
                yield streams
            finally:
                process.give_notice()


@asynccontextmanager
async def _address(server: Server) -> AsyncIterator[Streams]:
    headers = dict(server.headers) or None
    if server.transport == "sse":
        sse: Any = load("mcp.client.sse", "mcp")
        async with sse.sse_client(server.url, headers=headers) as (read, write):
            yield read, write
        return
    http: Any = load("mcp.client.streamable_http", "mcp")
    async with (
        http.create_mcp_http_client(headers=headers) as client,
        http.streamable_http_client(server.url, http_client=client) as (read, write, *_),
    ):
        yield read, write


class ServerProcess(asyncio.Protocol):
    """One run of a server's command, its children included."""

    def __init__(self) -> None:
        self._stderr = b""
        self._group: int | None = None
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def wrapped(command: Sequence[str]) -> list[str]:
        """Return the command line that prints its process group and then becomes the command."""
        return ["/bin/sh", "-c", _TELL, "sh", *command]

    @property
    def last_words(self) -> str:
        """The end of its standard error."""
        return self._stderr.decode(errors="replace").strip()[-LAST:]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[TextIO]:
        """Yield the command's standard error; end all its processes on the way out.

        The pipe is read all the time, so that a server that writes a lot does not block.
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
        """Kill what still runs after a grace period: its input is about to be closed."""
        self._timer = asyncio.get_running_loop().call_later(GRACE, self.kill)

    def kill(self) -> None:
        """End the server and its children immediately. Safe to call at any time."""
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def data_received(self, data: bytes) -> None:
        """Keep the end of what it writes."""
        self._stderr += data
        if self._group is None:
            first, newline, rest = self._stderr.partition(b"\n")
            if not newline:
                return
            self._group, self._stderr = int(first), rest
        self._stderr = self._stderr[-4 * LAST :]

    def connection_lost(self, exc: Exception | None) -> None:
        """All its processes have ended, or have closed their standard error."""
        self._ended.set()
