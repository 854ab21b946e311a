"""What flows through tunnels holds up nobody, fills no memory, and takes no more than its share."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.local_box import inside
from tests.sandbox.test_tunnel import MIB, run, serving
from tests.waiting import until
from vf.sandbox.frames import MOST_CONNECTIONS, WINDOW, Decoder, Frame, FrameError, encode
from vf.sandbox.inside.tunnel import BURST, PER_SECOND
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.tunnel import ALWAYS, Tunnel

KERNEL = 24 * MIB  # what the kernel buffers of two connections, at most


def tunnel_of(box: UnsafeLocalSandbox) -> Tunnel:
    assert box._session is not None
    return box._session._tunnel


async def memory_of(box: UnsafeLocalSandbox) -> int:
    """Return the supervisor's peak memory, bytes."""
    assert box._session is not None
    return int((await box._session.stats())["memory"])


def memory_of_this_process() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_who_does_not_read_makes_the_other_wait_and_nobody_else() -> None:
    size = 40 * MIB
    sent = 0

    async def pour(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        for _ in range(size // MIB):
            writer.write(os.urandom(1) * MIB)
            await writer.drain()
            sent += MIB

    code = f"""
import os
s = connect()
while not os.path.exists("go"): time.sleep(0.01)
print(len(rest(s)) == {size})
"""

    async def body(box: UnsafeLocalSandbox) -> None:
        async with serving(pour) as address:
            port = await box.forward(address)
            before = await memory_of(box)
            call = asyncio.create_task(run(box, port, code, timeout=600))
            await until(lambda: sent > MIB)
            for _ in range(5):
                await box.exec("true")
            assert sent < KERNEL + 4 * WINDOW
            assert await memory_of(box) - before < 8 * MIB
            await box.write_file("go", "")
            assert (await call).stdout == "True\n"
            assert await memory_of(box) - before < 8 * MIB
        await until(lambda: not tunnel_of(box)._connections)

    inside(body)


def test_a_host_that_does_not_read_makes_the_program_wait_and_nobody_else() -> None:
    size = 40 * MIB
    go = asyncio.Event()
    digests: list[str] = []

    async def dam(reader: Reader, writer: Writer) -> None:
        await go.wait()
        digests.append(hashlib.sha256(await reader.read()).hexdigest())

    code = f"""
s = connect()
data = bytes(range(256)) * ({size} // 256)
s.settimeout(1)
sent = 0
try:
    while sent < len(data): sent += s.send(data[sent : sent + 2**20])
except TimeoutError: pass
print(sent, flush=True)
open("stuck", "w").close()
s.settimeout(600)
s.sendall(data[sent:])
s.close()
"""

    async def body(box: UnsafeLocalSandbox) -> None:
        async with serving(dam) as address:
            port = await box.forward(address)
            before, ours = await memory_of(box), memory_of_this_process()
            call = asyncio.create_task(run(box, port, code, timeout=600))
            while (await box.exec("test -e stuck")).returncode:
                pass  # each call is answered meanwhile
            assert memory_of_this_process() - ours < 16 * MIB
            assert await memory_of(box) - before < 8 * MIB
            go.set()
            result = await call
            assert int(result.stdout) < KERNEL + 4 * WINDOW
            whole = bytes(range(256)) * (size // 256)
            await until(lambda: digests == [hashlib.sha256(whole).hexdigest()])

    inside(body)


@pytest.mark.parametrize("way", ["up", "down"])
def test_calls_are_answered_while_much_flows(way: str) -> None:
    async def both(reader: Reader, writer: Writer) -> None:
        if way == "down":
            while True:
                writer.write(bytes(MIB))
                await writer.drain()
        else:
            while await reader.read(MIB):
                pass

    code = """
threading.stack_size(2**17)
def up(s):
    while True: s.sendall(bytes(2**20))
def down(s):
    while s.recv(2**20): pass
"""

    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._session is not None
        async with serving(both) as address:
            port = await box.forward(address)
            start = f"for _ in range(60): threading.Thread(target={way}, args=[connect()]).start()"
            call = asyncio.create_task(run(box, port, code + start, timeout=300))
            await until(lambda: len(tunnel_of(box)._connections) == 60)
            for _ in range(50):
                await box._session.ping(timeout=60)
            assert not call.done()
            assert (await box.exec("echo fine")).stdout == "fine\n"
            call.cancel()

    inside(body)


def test_so_many_connections_at_once_and_more_when_some_have_ended() -> None:
    open_now = most = all_of_them = 0

    async def hold(reader: Reader, writer: Writer) -> None:
        nonlocal open_now, most, all_of_them
        open_now, all_of_them = open_now + 1, all_of_them + 1
        most = max(most, open_now)
        await reader.read()
        open_now -= 1

    more = 20
    code = f"""
import os
every = [connect() for _ in range({MOST_CONNECTIONS + more})]
open("open", "w").close()
while not os.path.exists("go"): time.sleep(0.01)
for s in every[:{more}]: s.close()
time.sleep(1000)
"""

    async def body(box: UnsafeLocalSandbox) -> None:
        async with serving(hold) as address:
            port = await box.forward(address)
            call = asyncio.create_task(run(box, port, code, timeout=600))
            await until(lambda: open_now == MOST_CONNECTIONS)
            while (await box.exec("test -e open")).returncode:
                pass
            assert all_of_them == MOST_CONNECTIONS
            await box.write_file("go", "")
            await until(lambda: all_of_them == MOST_CONNECTIONS + more)
            assert most <= MOST_CONNECTIONS
            call.cancel()
            await until(lambda: open_now == 0)
        assert box._process is not None
        held = Path(f"/proc/{box._process.pid}/fd")
        await until(lambda: len(list(held.iterdir())) < 30)
        await until(lambda: not tunnel_of(box)._connections)

    inside(body)


def test_a_flood_of_connections_is_slowed_down() -> None:
    came = 0

    async def count(reader: Reader, writer: Writer) -> None:
        nonlocal came
        came += 1

    async def body(box: UnsafeLocalSandbox) -> None:
        async with serving(count) as address:
            port = await box.forward(address)
            began = time.monotonic()
            result = await run(box, port, "while True: connect().close()", timeout=1.0)
            assert result.timed_out
            assert (await box.exec("echo fine")).stdout == "fine\n"
            assert came <= BURST + PER_SECOND * (time.monotonic() - began) + 1

    inside(body)


class Recorder:
    """A stream to nobody."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._decoder = Decoder()

    def write(self, data: bytes) -> None:
        self.frames += self._decoder.feed(data)

    async def drain(self) -> None:
        return


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([{"tunnel": 1, "open": 1}], "no connection 1 can be opened to 1"),
        ([{"tunnel": 1, "open": -1}], "opened to -1"),
        ([{"tunnel": 1, "open": "127.0.0.1:22"}], "opened to '127.0.0.1:22'"),
        ([{"tunnel": "1", "open": 0}], "no connection '1'"),
        ([{"tunnel": 1, "open": 0}] * 2, "no connection 1"),
        ([{"tunnel": n, "open": 0} for n in range(MOST_CONNECTIONS + 1)], "more than 256"),
        ([{"tunnel": 1, "open": 0}, {"tunnel": 1, "ack": 1}], "acknowledges more"),
        ([{"tunnel": 1, "open": 0}, {"tunnel": 1, "ack": -1}], "acknowledges more"),
        ([{"tunnel": 1, "open": 0}, {"tunnel": 1, "data": WINDOW + 1}], "more than it may"),
        (
            [{"tunnel": 1, "open": 0}, {"tunnel": 1, "end": True}, {"tunnel": 1, "data": 1}],
            "more than it may",
        ),
    ],
)
def test_a_supervisor_that_takes_more_than_it_may_is_not_followed(
    frames: list[dict[str, Any]], why: str
) -> None:
    async def body() -> None:
        tunnel = Tunnel(Recorder())
        tunnel.add("/no/such/socket")
        *before, last = ((frame, [bytes(frame.pop("data", 0))]) for frame in frames)
        for header, parts in before:
            tunnel.take(header, parts)
        with pytest.raises(FrameError, match=why):
            tunnel.take(*last)
        tunnel.close()

    asyncio.run(body())


def test_the_files_that_this_process_may_open_are_not_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vf.sandbox.tunnel.limit", lambda: 4 * 2 * ALWAYS)

    def opened(tunnel: Tunnel, stream: Recorder) -> int:
        tunnel.add("/no/such/socket")
        for number in range(100):
            tunnel.take({"tunnel": number, "open": 0}, [])
        assert {"op", "id", "close"} == set().union(*(header for header, _ in stream.frames))
        return 100 - len(stream.frames)

    async def body() -> None:
        streams = [Recorder(), Recorder()]
        tunnels = [Tunnel(stream) for stream in streams]
        # The first takes what there is, and leaves the second its own.
        assert list(map(opened, tunnels, streams)) == [2 * ALWAYS, ALWAYS]
        for tunnel in tunnels:
            tunnel.close()
        assert not Tunnel._of_all
        tunnels[0].take({"tunnel": 200, "open": 0}, [])
        assert not Tunnel._of_all

    asyncio.run(body())


def test_frames_of_connections_that_have_ended_are_ignored_on_both_sides() -> None:
    late: list[dict[str, Any]] = [{}, {"ack": 5}, {"end": True}, {"close": True}]

    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._session is not None
        for header in late:
            tunnel_of(box).take({"tunnel": 77, **header}, [b"data"])
            frame = encode({"op": "tunnel", "id": 77, **header}, b"data")
            box._session._writer.write(frame)
        assert (await box.exec("echo fine")).stdout == "fine\n"

    inside(body)
