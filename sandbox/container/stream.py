"""A container's held-open streams as an asyncio reader and writer.

They are a connection of their own to the engine, over a Unix socket, TCP or TLS. It begins as HTTP,
until the engine gives it up to the streams. The engine multiplexes stdout and stderr: each piece
has a header of eight bytes, the stream's number (1 or 2), three zeros, and the length, big-endian.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import weakref
from functools import cache
from typing import Protocol

STDOUT, STDERR = 1, 2
HEADER = 8
STDERR_KEPT = 8192  # bytes at the end of the supervisor's stderr, for the error message
BUFFER = 2**20  # bytes read ahead before the engine is made to wait
ANSWER_TIMEOUT = 60.0  # seconds


class Closable(Protocol):
    """Something with a ``close``."""

    def close(self) -> None:
        """Close it."""


_held: weakref.WeakSet[Closable] = weakref.WeakSet()


class Refusal(Exception):
    """The engine answered a request for streams with an error; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Demultiplexer(asyncio.StreamReaderProtocol):
    """Feeds what comes as stdout to a reader, and keeps the end of stderr.

    Args:
        reader: The reader of stdout; its flow control reaches through to the engine.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._out = reader  # the parent holds its reader by a weak reference
        self._header = bytearray()
        self._left = 0
        self.stderr = bytearray()

    def data_received(self, data: bytes) -> None:
        """Take the multiplexed bytes apart; pieces and headers may be cut anywhere."""
        view, at = memoryview(data), 0
        while at < len(view):
            if self._left == 0:
                taken = view[at : at + HEADER - len(self._header)]
                self._header += taken
                at += len(taken)
                if len(self._header) == HEADER:
                    self._left = int.from_bytes(self._header[4:], "big")
                    self._stream = self._header[0]
                    self._header.clear()
                continue
            piece = view[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._stream == STDOUT:
                self._out.feed_data(bytes(piece))
            elif self._stream == STDERR:
                self.stderr += piece
                del self.stderr[:-STDERR_KEPT]


class Upgrade(asyncio.Protocol):
    """Requests a container's streams by HTTP, then hands the connection to another protocol.

    Args:
        path: The request's path and query.
        host: The engine's name.
        after: The protocol that gets the connection, and what followed the engine's answer.
        done: A future that completes after the handover, with an exception if it fails.
    """

    def __init__(
        self, path: str, host: str, after: asyncio.Protocol, done: asyncio.Future[None]
    ) -> None:
        import h11

        self._after, self._done = after, done
        self._http = h11.Connection(h11.CLIENT)
        headers = [("Host", host), ("Connection", "Upgrade"), ("Upgrade", "tcp")]
        self._request = h11.Request(method="POST", target=path, headers=headers)
        self._status, self._body = 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        import h11

        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        for event in (self._request, h11.EndOfMessage()):
            transport.write(self._http.send(event) or b"")

    def data_received(self, data: bytes) -> None:
        """Read the answer."""
        self._read(data)

    def eof_received(self) -> None:
        """Read the end of an answer that ends with the connection."""
        self._read(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, if no answer has come."""
        if not self._done.done():
            self._done.set_exception(
                exc or ConnectionResetError("the engine closed the connection")
            )

    def _read(self, data: bytes) -> None:
        import h11

        if self._done.done():
            return
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                    self._leave(self._http.trailing_data[0])
                    return
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    self._done.set_exception(Refusal(_message(self._body), self._status))
                    return
        except h11.ProtocolError as error:
            self._done.set_exception(ConnectionError(f"this is no engine's answer: {error}"))

    def _leave(self, rest: bytes) -> None:
        self._transport.set_protocol(self._after)
        self._after.connection_made(self._transport)
        if rest:
            self._after.data_received(rest)
        self._done.set_result(None)


def _message(body: bytes) -> str:
    """Return the error message in an engine's answer."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip() or "it does not say why"


class Stream:
    """Both directions of a held-open attachment.

    Attributes:
        reader: The container's stdout.
        writer: Its stdin.
    """

    def __init__(self, writer: asyncio.StreamWriter, protocol: Demultiplexer) -> None:
        self.reader = protocol._out
        self.writer = writer
        self._protocol = protocol

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        path: str,
        *,
        host: str = "docker",
        tls: ssl.SSLContext | None = None,
    ) -> Stream:
        """Request a container's streams, and hold them.

        A child that this process forks does not hold them: the container ends with this process.

        Args:
            sock: A connection to the engine, which now belongs to the stream.
            path: The request's path and query.
            host: The engine's name, for HTTP and TLS.
            tls: The TLS context; None: no encryption.

        Raises:
            Refusal: If the engine responded with an error.
            OSError: If the engine did not respond, or not in time.
        """
        close_in_children(sock)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFER, loop=loop)
        protocol = Demultiplexer(reader)
        done: asyncio.Future[None] = loop.create_future()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                transport, _ = await loop.create_connection(
                    lambda: Upgrade(path, host, protocol, done),
                    sock=sock,
                    ssl=tls,
                    server_hostname=host if tls else None,
                )
                try:
                    await done
                except BaseException:
                    transport.abort()
                    raise
        except BaseException:
            sock.close()
            raise
        return cls(asyncio.StreamWriter(transport, protocol, reader, loop), protocol)

    @property
    def stderr(self) -> str:
        """The end of what the container wrote to stderr."""
        return self._protocol.stderr.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Let go at once, without waiting for what is unsent."""
        self.writer.transport.abort()


def close_in_children(held: Closable) -> None:
    """Let a child that this process forks close its copy at once."""
    _watch_forks()
    _held.add(held)


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    """Close a forked child's copies; the event loop that they belong to is its parent's."""
    for held in list(_held):
        held.close()
