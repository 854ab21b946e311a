"""Where an MCP server is, and how to reach it through the official client."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from vf.runtime.extras import load
from vf.tools.mcp.process import ServerProcess

Transport = Literal["http", "sse"]
# What the client reads messages from, and what it writes them to.
Streams: TypeAlias = tuple[Any, Any]


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
