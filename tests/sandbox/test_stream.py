"""The engine's multiplexed stream, taken apart wherever it is cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf.sandbox.container.stream import BUFFER, STDERR_KEPT, Refusal, Stream

UPGRADE = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


async def opened(here: socket.socket, there: socket.socket, answer: bytes = UPGRADE) -> Stream:
    """Hold a stream, with an engine that answers at once."""
    there.sendall(answer)
    stream = await Stream.open(here, "/attach")
    there.settimeout(20)
    assert there.recv(4096).startswith(b"POST /attach HTTP/1.1\r\n")
    there.setblocking(False)
    return stream


pieces = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12)


def packed(parts: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack(">BxxxI", kind, len(data)) + data for kind, data in parts)


def joined(parts: list[tuple[int, bytes]], kind: int) -> bytes:
    return b"".join(data for what, data in parts if what == kind)


@given(parts=pieces, cuts=st.lists(st.integers(1, 30), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_stdout_and_stderr_come_apart_however_they_are_cut(
    parts: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    async def run() -> tuple[bytes, bytes]:
        here, there = socket.socketpair()
        with there:
            stream = await opened(here, there)
            data = packed(parts)
            for cut in cuts:
                stream._protocol.data_received(data[:cut])
                data = data[cut:]
            stream._protocol.data_received(data)
            there.shutdown(socket.SHUT_WR)
            out = await stream.reader.read()
            stream.close()
            return out, bytes(stream._protocol.stderr)

    assert asyncio.run(run()) == (joined(parts, 1), joined(parts, 2))


def test_a_forked_child_does_not_hold_the_stream() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with there:
            stream = await opened(here, there)
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.read(read, 1)  # it lives until the end of the test
                os._exit(0)
            stream.close()
            there.settimeout(20)
            assert await asyncio.to_thread(there.recv, 1) == b""
            os.write(write, b"x")
            await asyncio.to_thread(os.waitpid, child, 0)
            os.close(read)
            os.close(write)

    asyncio.run(run())


def test_both_directions_of_a_socket() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        stream = await opened(here, there)
        loop = asyncio.get_running_loop()
        stream.writer.write(b"hello")
        assert await loop.sock_recv(there, 100) == b"hello"
        last = b"x" * STDERR_KEPT + b" the end"
        await loop.sock_sendall(there, packed([(1, b"out"), (2, last)]))
        assert await stream.reader.readexactly(3) == b"out"
        there.close()
        assert await stream.reader.read() == b""
        assert stream.stderr.endswith("x the end")
        assert len(stream.stderr) == STDERR_KEPT
        stream.close()

    asyncio.run(run())


def test_who_does_not_read_makes_the_other_side_wait() -> None:
    async def run() -> int:
        here, there = socket.socketpair()
        stream = await opened(here, there)
        frame = packed([(1, b"x" * 65536)])
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while sent < 64 * BUFFER:
                    await asyncio.get_running_loop().sock_sendall(there, frame)
                    sent += len(frame)
        stream.close()
        there.close()
        return sent

    assert asyncio.run(run()) < 4 * BUFFER


def test_letting_go_is_seen_at_the_other_end() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        stream = await opened(here, there)
        stream.close()
        async with asyncio.timeout(60):
            assert await asyncio.get_running_loop().sock_recv(there, 1) == b""
        there.close()

    asyncio.run(run())


def test_what_comes_with_the_answer_belongs_to_the_streams() -> None:
    async def run() -> bytes:
        here, there = socket.socketpair()
        with there:
            stream = await opened(here, there, UPGRADE + packed([(1, b"early")]))
            try:
                return await stream.reader.readexactly(5)
            finally:
                stream.close()

    assert asyncio.run(run()) == b"early"


GONE = b'{"message": "No such container: x"}'


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 35\r\n\r\n" + GONE, Refusal, "No such"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n" + GONE, Refusal, "No such"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", Refusal, "does not say"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", OSError, "no engine"),
        (b"HTTP/1.1 1", OSError, "no engine"),
        (b"", OSError, "no engine"),
    ],
)
def test_an_engine_that_opens_no_stream(answer: bytes, error: type[Exception], said: str) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with there:
            there.sendall(answer)
            there.shutdown(socket.SHUT_WR)
            with pytest.raises(error, match=said):
                await Stream.open(here, "/attach")
            assert here.fileno() == -1

    asyncio.run(run())
