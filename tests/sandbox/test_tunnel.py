"""Tunnels: what runs inside reaches one address, whole, and cannot do more than that."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.local_box import inside
from tests.waiting import until
from vf.runtime.errors import SandboxError
from vf.sandbox.contract import Address, ExecResult
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.scripted_sandbox import ScriptedSandbox

MIB = 2**20
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
# What a program inside begins with.
CONNECT = """
import hashlib, socket, sys, threading, time
def connect():
    return socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=600)
def rest(s):
    data = b""
    while more := s.recv(2**20): data += more
    return data
"""


@asynccontextmanager
async def serving(serve: Serve, path: Path | None = None) -> AsyncIterator[Address]:
    """Serve on a port of this machine's, or a Unix socket."""

    async def safely(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    if path is not None:
        async with await asyncio.start_unix_server(safely, path):
            yield str(path)
    else:
        # The kernel may forget one that did not fit its queue, whose program then waits for ever.
        async with await asyncio.start_server(safely, "127.0.0.1", 0, backlog=1024) as server:
            yield server.sockets[0].getsockname()[:2]


async def run(box: UnsafeLocalSandbox, port: int, code: str, **options: Any) -> ExecResult:
    """Run a program that finds `connect()` and `rest()`."""
    return await box.exec(["python3", "-c", CONNECT + code, str(port)], **options)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, and end when it ends."""
    while data := await reader.read(MIB):
        writer.write(data)
        await writer.drain()


def test_a_connection_that_the_address_refuses_or_drops_is_reset_inside() -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"begun")
        await reader.readexactly(1)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()

    code = """
try:
    s = connect()
    print(s.recv(100))
    s.sendall(b"x" * 100)
    print(rest(s))
except ConnectionResetError:
    print("reset")
"""

    async def body(box: UnsafeLocalSandbox) -> None:
        async with serving(drop) as address:
            port = await box.forward(address)
            assert (await run(box, port, code)).stdout == "b'begun'\nreset\n"
        nobody = await run(box, port, code)
        assert nobody.stdout == "reset\n", nobody
        no_file = await run(box, await box.forward("/no/such/socket"), code)
        assert no_file.stdout == "reset\n", no_file

    inside(body)


def test_the_address_learns_when_a_program_dies_or_the_sandbox_is_closed() -> None:
    came: list[bytes] = []
    ended: list[bytes] = []

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readexactly(4))
        ended.append(await reader.read())

    async def body() -> None:
        async with serving(wait) as address, UnsafeLocalSandbox(unsafe_local=True) as box:
            port = await box.forward(address)
            code = "s = connect(); s.sendall(b'here'); time.sleep(1000)"
            calls = [asyncio.create_task(run(box, port, code)) for _ in range(2)]
            await until(lambda: came == [b"here", b"here"])
            calls[0].cancel()
            await until(lambda: ended == [b""])
            await box.close()
            await until(lambda: ended == [b"", b""])
            with pytest.raises(SandboxError):
                await calls[1]

    asyncio.run(body())


@pytest.mark.parametrize("late", [False, True])
def test_an_address_that_resets_takes_only_its_own_connection(late: bool) -> None:
    """Its reset may be unread here when the program inside ends its side."""

    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._session is not None
        server = socket.create_server(("127.0.0.1", 0))
        port = await box.forward(server.getsockname()[:2])
        tunnel = box._session._tunnel
        accepted = asyncio.get_running_loop().run_in_executor(None, server.accept)
        # The reset can be seen as early as by `connect()`, on a slow machine.
        code = "try: rest(connect())\nexcept ConnectionError: pass\nprint('ended')"
        program = asyncio.create_task(run(box, port, code))
        other, _ = await accepted
        if not late:
            await until(lambda: [c._transport for c in tunnel._connections.values()] != [None])
        (connection,) = tunnel._connections.values()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        connection.finish()
        result = await program
        assert (result.stdout, result.stderr) == ("ended\n", "")
        assert (await box.exec("echo fine")).stdout == "fine\n"
        server.close()

    inside(body)


def test_bad_arguments_and_lost_sandboxes() -> None:
    no_addresses = ("", "a\0b", ("", 80), ("h", 0), ("h", "80"), ("h", 1, 2), 80, None)
    bad: list[tuple[Any, Any]] = [
        *((("127.0.0.1", 80), port) for port in (-1, 2**16, None, True)),
        *((address, 0) for address in no_addresses),
    ]

    async def body(box: UnsafeLocalSandbox) -> None:
        for address, port in bad:
            with pytest.raises(ValueError, match=r"address must|port must"):
                await box.forward(address, port=port)
        async with serving(echo) as address:
            assert isinstance(address, tuple)
            with pytest.raises(OSError, match="in use") as caught:
                await box.forward(address, port=address[1])
            assert caught.value.errno == errno.EADDRINUSE
        assert box._process is not None
        await box.exec("true")
        os.kill(box._process.pid, signal.SIGKILL)
        with pytest.raises(OSError, match="ended through what ran in it"):
            await box.forward(("127.0.0.1", 80))
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.forward(("127.0.0.1", 80))

    inside(body)


def test_a_scripted_sandbox_says_a_port_and_remembers() -> None:
    async def run() -> list[int]:
        async with ScriptedSandbox() as box:
            ports = [await box.forward(("h", 80)), await box.forward("/s"), await box.forward("/s")]
            assert await box.forward("/s", port=8000) == 8000
            with pytest.raises(ValueError, match="address"):
                await box.forward("")
            assert [call.method for call in box.calls] == ["forward"] * 5
        return ports

    assert len(set(asyncio.run(run()))) == 3
