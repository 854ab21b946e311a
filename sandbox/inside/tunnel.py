"""The sandbox's end of tunnels: listeners on the loopback, whose connections go to the client.

The client decides where each leads: see ``tunnel.py`` beside this folder, which is the other end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from functools import partial
from typing import Any

from vf.sandbox.frames import MOST_CONNECTIONS, WINDOW
from vf.sandbox.inside.box import Box
from vf.sandbox.inside.loop import CHUNK, Outlet

# Each new connection costs the client work: code that opens them without end has to wait.
BURST = 256
PER_SECOND = 100.0
BUSY = 0.1  # seconds until another try, where there is no descriptor left
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing it resets it


class Tunnel:
    """All listeners, and all connections that they accepted."""

    def __init__(self, box: Box) -> None:
        """Start without listeners."""
        self.box = box
        self._listeners: dict[int, socket.socket] = {}  # by route
        self._connections: dict[int, Connection] = {}
        self._count = 0
        self._due = 0.0  # when the last connection would have come at an even pace

    def listen(self, route: int, port: int) -> int:
        """Accept connections on the loopback from now on; return the port.

        Raises:
            OSError: If the port is taken, or not permitted.
        """
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(BURST)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listeners[route] = listener
        self._resume()
        return int(listener.getsockname()[1])

    def take(self, number: int, header: dict[str, Any], parts: list[bytes]) -> None:
        """Take a frame that belongs to a connection."""
        connection = self._connections.get(number)
        if connection is None:
            return  # it has ended here, and the client did not know yet
        if parts:
            connection.deliver(parts[0])
        if "ack" in header:
            connection.acknowledge(int(header["ack"]))
        if "end" in header:
            connection.finish()
        if "close" in header:
            connection.abort()

    def send(self, number: int, *parts: bytes, **header: Any) -> None:
        """Send a frame to the client."""
        self.box.answer(0, {"tunnel": number, **header}, *parts)

    def drop(self, number: int) -> None:
        """Remove a connection."""
        del self._connections[number]
        self._resume()

    def _resume(self) -> None:
        for route, listener in self._listeners.items():
            self.box.loop.watch(listener.fileno(), partial(self._accept, route))

    def _pause(self, seconds: float | None) -> None:
        """Let further connections wait, for so long or until one is dropped."""
        for listener in self._listeners.values():
            self.box.loop.forget(listener.fileno())
        if seconds is not None:
            self.box.loop.later(seconds, self._resume)

    def _accept(self, route: int) -> None:
        now = time.monotonic()
        early = self._due - now - BURST / PER_SECOND
        if early > 0:
            self._pause(early)
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            self._pause(None)
            return
        try:
            accepted = self._listeners[route].accept()[0]
            connection = Connection(self, self._count + 1, accepted)
        except BlockingIOError:
            return
        except OSError:  # no further descriptor, say
            self._pause(BUSY)
            return
        self._due = max(self._due, now) + 1 / PER_SECOND
        self._count += 1
        self._connections[self._count] = connection
        self.send(self._count, open=route)


class Connection:
    """One connection's end in the sandbox."""

    def __init__(self, tunnel: Tunnel, number: int, accepted: socket.socket) -> None:
        """Read from it and write to it.

        Args:
            tunnel: The tunnel that it belongs to.
            number: Its number in the protocol.
            accepted: The connection; it is closed when this fails.

        Raises:
            OSError: If no further descriptor can be opened.
        """
        self._tunnel, self._loop, self._number = tunnel, tunnel.box.loop, number
        self._socket, self._open = accepted, True
        self._window = WINDOW  # bytes that the client takes
        self._reading = True  # until the program has ended its side
        self._unacked = 0  # bytes given to the program and not acknowledged
        self._writing = True  # until the client has ended its side
        self._reset = False  # whether it is to be reset after what waits to be written
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A descriptor of its own: the loop has one handler for each.
            self._outlet = Outlet(self._loop, os.dup(accepted.fileno()), self._written)
        except OSError:
            accepted.close()
            raise
        self._resume()

    def deliver(self, data: bytes) -> None:
        """Write what the client sends."""
        self._outlet.send(data)

    def acknowledge(self, count: int) -> None:
        """Read more: the client has taken so many bytes."""
        self._window += count
        self._resume()

    def finish(self) -> None:
        """End our side after what waits to be written."""
        self._writing = False
        self._settle()

    def abort(self) -> None:
        """Reset it after what waits to be written: the client's end is gone."""
        self._reset = True
        self._reading = False
        self._loop.forget(self._socket.fileno())
        self._settle()

    def _resume(self) -> None:
        if self._open and self._reading and self._window > 0:
            self._loop.watch(self._socket.fileno(), self._read)

    def _read(self) -> None:
        if self._tunnel.box.full(self._resume):
            self._loop.forget(self._socket.fileno())
            return
        try:
            data = self._socket.recv(min(CHUNK, self._window))
        except BlockingIOError:
            return
        except OSError:
            self._break()
            return
        if data:
            self._window -= len(data)
            self._tunnel.send(self._number, data)
        else:
            self._reading = False
            self._tunnel.send(self._number, end=True)
        if not self._reading or self._window <= 0:
            self._loop.forget(self._socket.fileno())
        self._settle()

    def _written(self, count: int) -> None:
        """Reopen the client's window, not for every few bytes."""
        if not self._open:
            return
        if not self._outlet.open:
            self._break()
            return
        self._unacked += count
        if self._unacked >= WINDOW // 2:
            self._tunnel.send(self._number, ack=self._unacked)
            self._unacked = 0
        self._settle()

    def _settle(self) -> None:
        """Do what had to wait until everything was written."""
        if not self._open or len(self._outlet):
            return
        if self._reset:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._close()
        elif not self._writing and not self._reading:
            self._close()
        elif not self._writing:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _break(self) -> None:
        """Tell the client that the program has broken it."""
        self._tunnel.send(self._number, close=True)
        self._close()

    def _close(self) -> None:
        self._open = False
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        self._outlet.close()
        del self._outlet  # it refers to this, and the collector of cycles does not run
        self._tunnel.drop(self._number)
