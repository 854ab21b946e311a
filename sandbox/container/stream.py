"""A container's held-open streams as an asyncio reader and writer.

The engine multiplexes stdout and stderr: each piece has a header of eight bytes, the stream's
number (1 or 2), three zeros, and the length, big-endian.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from functools import cache

STDOUT, STDERR = 1, 2
HEADER = 8
STDERR_KEPT = 8192  # bytes: what the supervisor says last, for the error message
BUFFER = 2**20  # bytes read ahead before the engine is made to wait
_held: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class Demultiplexer(asyncio.StreamReaderProtocol):
    """Feeds what comes as stdout to a reader, and keeps the end of stderr.

    Args:
        reader: Gets the bytes of stdout; its flow control reaches through to the engine.
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
    async def open(cls, sock: socket.socket) -> Stream:
        """Take over an attached, non-blocking socket.

        A child that this process forks does not hold it: the container ends with this process.
        """
        _watch_forks()
        _held.add(sock)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFER, loop=loop)
        protocol = Demultiplexer(reader)
        transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return cls(writer, protocol)

    @property
    def stderr(self) -> str:
        """The end of what the container wrote to stderr."""
        return self._protocol.stderr.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Let go at once, without waiting for what is unsent."""
        self.writer.transport.abort()


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    """Close a forked child's copies; the event loop that they belong to is its parent's."""
    for sock in list(_held):
        sock.close()
