"""The client's end of tunnels: it connects what runs in a sandbox to addresses of this machine.

The supervisor listens on the sandbox's loopback. For each connection that it accepts, this side
opens one to the address that :meth:`Tunnel.add` was given, and frames carry the bytes of both.
Frames name a connection by a number; an address never comes from inside.

Each direction of a connection has a window, which limits the bytes in transit or unread.
Acknowledgements reopen it. So neither side can fill the other's memory, and a connection that does
not read delays no other, nor any call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from vf.runtime.open_files import limit
from vf.sandbox.contract import Address
from vf.sandbox.frames import MOST_CONNECTIONS, WINDOW, FrameError, encode

CONNECT_TIMEOUT = 10.0  # seconds
PIECE = 2**16  # bytes that a frame carries, so that others come in between
# All tunnels of this process may have a quarter as many connections as it may have open files: one
# that it also serves is two files. Each sandbox may always have some.
SHARE, ALWAYS = 4, 16


class Writer(Protocol):
    """A sink of frames, such as an ``asyncio.StreamWriter``."""

    def write(self, data: bytes, /) -> None:
        """Take bytes, all of them, without waiting."""
        ...

    async def drain(self) -> None:
        """Wait while too much of it is waiting."""
        ...


class Tunnel:
    """All connections of one sandbox."""

    _of_all: ClassVar[set[Connection]] = set()  # the open ones of this process

    def __init__(self, writer: Writer) -> None:
        """Start without connections."""
        self._writer = writer
        self._routes: list[Address] = []
        self._connections: dict[int, Connection] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._ready: deque[Connection] = deque()  # those with something to send
        self._pump: asyncio.Task[None] | None = None
        self._closed = False
        self.buffer = memoryview(bytearray(PIECE))  # of the connection that is reading

    def add(self, address: Address) -> int:
        """Return the number by which the supervisor requests connections to an address.

        Raises:
            ValueError: If it is not an address.
        """
        self._routes.append(check_address(address))
        return len(self._routes) - 1

    def take(self, header: dict[str, Any], parts: list[bytes]) -> None:
        """Take a frame from the supervisor.

        Raises:
            FrameError: If it requests more than it may.
        """
        number = header["tunnel"]
        if self._closed:
            return
        if "open" in header:
            self._open(number, header["open"])
            return
        connection = self._connections.get(number)
        if connection is None:
            return  # it has ended here, and the supervisor did not know yet
        if parts:
            connection.deliver(parts[0])
        if "ack" in header:
            connection.acknowledge(int(header["ack"]))
        if "end" in header:
            connection.finish()
        if "close" in header:
            connection.abort()

    def close(self) -> None:
        """End every connection, and refuse new ones."""
        self._closed = True
        for task in self._connecting:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.abort()
        if self._pump is not None:
            self._pump.cancel()

    def send(self, number: int, *parts: bytes, **header: Any) -> None:
        """Send a frame to the supervisor."""
        self._writer.write(encode({"op": "tunnel", "id": number, **header}, *parts))

    def queue(self, connection: Connection) -> None:
        """Let a connection send its buffer, in its turn."""
        if connection not in self._ready:
            self._ready.append(connection)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._send_all())

    def forget(self, number: int) -> None:
        """Remove a connection."""
        if (connection := self._connections.pop(number, None)) is not None:
            self._of_all.discard(connection)

    def _open(self, number: Any, route: Any) -> None:
        valid = type(route) is int and 0 <= route < len(self._routes)
        if type(number) is not int or number in self._connections or not valid:
            raise FrameError(f"no connection {number!r} can be opened to {route!r}")
        if len(self._connections) >= MOST_CONNECTIONS:
            raise FrameError(f"more than {MOST_CONNECTIONS} connections were opened")
        if len(self._connections) >= ALWAYS and len(self._of_all) >= limit() // SHARE:
            self.send(number, close=True)
            return
        connection = self._connections[number] = Connection(self, number)
        self._of_all.add(connection)
        loop = asyncio.get_running_loop()
        task = loop.create_task(_connect(connection, self._routes[route]))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _send_all(self) -> None:
        """Send a piece of each connection in turn, never more than the stream takes."""
        while self._ready:
            try:
                await self._writer.drain()
            except OSError:
                return  # whoever reads the stream will know, and close this
            if self._ready:
                connection = self._ready.popleft()
                if connection.send_piece():
                    self._ready.append(connection)


async def _connect(connection: Connection, address: Address) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if isinstance(address, str):
                await loop.create_unix_connection(lambda: connection, address)
            else:
                await loop.create_connection(lambda: connection, *address)
    except (OSError, UnicodeError):  # a TimeoutError is the first, no host's name the second
        connection.connection_lost(None)


class Connection(asyncio.BufferedProtocol):
    """One connection's end on this machine.

    Args:
        tunnel: The tunnel that it belongs to.
        number: The supervisor's number for it.
    """

    def __init__(self, tunnel: Tunnel, number: int) -> None:
        self._tunnel, self._number = tunnel, number
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()  # to be written once it is connected
        self._late = False  # whether its transport takes nothing for now
        self._unacked = 0  # bytes taken from inside and not acknowledged
        self._taking = True  # until the program inside has ended its side
        self._held = bytearray()  # read here and not sent
        self._window = WINDOW  # bytes that the supervisor takes
        self._giving = True  # until the end of what is read here was sent
        self._eof = False  # nothing more will be read here
        self._lost = False  # nothing more can be written or read here
        self._over = False

    # Methods that asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write the bytes that came before."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._over:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=PIECE)
        early, self._early = self._early, bytearray()
        if early:
            transport.write(early)
            self._acknowledge_taken()
        if not self._taking:
            self._write_eof()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read no more than a piece, into what :meth:`buffer_updated` empties at once."""
        return self._tunnel.buffer

    def buffer_updated(self, count: int) -> None:
        """Hold it until the supervisor takes it."""
        self._held += self._tunnel.buffer[:count]
        if len(self._held) >= PIECE:
            assert self._transport is not None
            self._transport.pause_reading()
        self._tunnel.queue(self)

    def eof_received(self) -> bool:
        """Send the end to the program inside, which may still write."""
        self._eof = True
        self._tunnel.queue(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the one inside, after what was read here."""
        self._lost = True
        if not self._over:
            self._tunnel.queue(self)

    def pause_writing(self) -> None:
        """Let the supervisor wait."""
        self._late = True

    def resume_writing(self) -> None:
        """Let the supervisor send more."""
        self._late = False
        self._acknowledge_taken()

    # Frames of the supervisor.

    def deliver(self, data: bytes) -> None:
        """Write bytes of the program inside.

        Raises:
            FrameError: If it is more than the window allows, or came after the end.
        """
        self._unacked += len(data)
        if self._unacked > WINDOW or not self._taking:
            raise FrameError("a connection sent more than it may")
        if self._transport is None:
            self._early += data
        elif not self._transport.is_closing():
            self._transport.write(data)
            self._acknowledge_taken()

    def acknowledge(self, count: int) -> None:
        """Send more: the program inside has taken ``count`` bytes.

        Raises:
            FrameError: If so many were never sent.
        """
        self._window += count
        if count < 0 or self._window > WINDOW:
            raise FrameError("a connection acknowledges more than it was sent")
        self._tunnel.queue(self)

    def finish(self) -> None:
        """End the side that is written to: the program inside has ended its own."""
        self._taking = False
        if self._transport is not None and not self._lost:
            self._write_eof()
        self._settle()

    def abort(self) -> None:
        """End now."""
        self._over = True
        self._tunnel.forget(self._number)
        if self._transport is not None:
            self._transport.abort()

    # Bytes for the program inside.

    def send_piece(self) -> bool:
        """Send one frame; return whether there is more to send at once."""
        if self._over:
            return False
        size = min(len(self._held), self._window, PIECE)
        if size:
            piece = bytes(self._held[:size])
            del self._held[:size]
            self._window -= size
            self._tunnel.send(self._number, piece)
        if self._held:
            return self._window > 0
        if self._lost:
            self._tunnel.send(self._number, close=True)
            self.abort()
        elif self._eof:
            if self._giving:
                self._giving = False
                self._tunnel.send(self._number, end=True)
            self._settle()
        elif self._transport is not None:
            self._transport.resume_reading()
        return False

    def _settle(self) -> None:
        """Close it once both sides have ended, which both know without another frame."""
        if not self._taking and not self._giving:
            self._over = True
            self._tunnel.forget(self._number)
            if self._transport is not None:
                self._transport.close()

    def _write_eof(self) -> None:
        """End the side that is written to, unless the other end has reset it already."""
        assert self._transport is not None
        with suppress(OSError):  # asyncio says so next, by `connection_lost`
            self._transport.write_eof()

    def _acknowledge_taken(self) -> None:
        """Reopen the window after larger amounts."""
        if not self._late and self._unacked >= WINDOW // 2:
            count, self._unacked = self._unacked, 0
            self._tunnel.send(self._number, ack=count)


def check_address(address: Address) -> Address:
    """Return an address in the form of :mod:`socket`.

    Raises:
        ValueError: If it is not an address.
    """
    if isinstance(address, str):
        if address and "\0" not in address:
            return address
    elif isinstance(address, tuple) and len(address) == 2:
        host, port = address
        if isinstance(host, str) and host and type(port) is int and 0 < port < 2**16:
            return (host, port)
    raise ValueError(
        "an address must be (host, port) or the path of a Unix socket, such as "
        f'("127.0.0.1", 8000), got {address!r}'
    )
