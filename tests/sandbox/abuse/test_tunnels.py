"""Tunnels of real containers: code that abuses them gets nowhere, and nothing of them stays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer

from tests.sandbox.test_tunnel import CONNECT, MIB, serving
from tests.waiting import until, wait_until
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.frames import MOST_CONNECTIONS

from .conftest import Arena, processes_of
from .test_hosts import names

CLIENT = """
import asyncio, sys
from vf.sandbox.container.opening import open_container
PROGRAM = '''
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while s.recv(2**20): pass
'''
flowed = 0
async def pour(reader, writer):
    global flowed
    while True:
        writer.write(bytes(2**20))
        await writer.drain()
        flowed += 1
        if flowed == 20: print("flows", flush=True)
async def main():
    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    async with open_container() as sandbox:
        print(sandbox.name, flush=True)
        port = await sandbox.forward(server.sockets[0].getsockname()[:2])
        await sandbox.exec(["python3", "-c", PROGRAM, str(port)], timeout=300)
asyncio.run(main())
"""


def test_a_container_ends_with_its_client_while_its_tunnel_flows(engine: Engine) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        name = client.stdout.readline().strip()
        try:
            container = engine.call_now("inspect_container", name)["Id"]
            assert client.stdout.readline() == "flows\n"
        finally:
            client.kill()
    wait_until(lambda: name not in names(engine))
    assert processes_of(container) == {}


def test_code_that_opens_all_and_never_reads_fills_no_memory(arena: Arena) -> None:
    async def pour(reader: Reader, writer: Writer) -> None:
        while True:
            writer.write(bytes(2**16))
            await writer.drain()

    code = f"""
every = [connect() for _ in range({MOST_CONNECTIONS + 50})]
print(len(every), flush=True)
time.sleep(1000)
"""

    async def attack(sandbox: DockerSandbox) -> None:
        assert sandbox._session is not None
        async with serving(pour) as address:
            port = await sandbox.forward(address)
            program = ["python3", "-c", CONNECT + code, str(port)]
            call = asyncio.create_task(sandbox.exec(program, timeout=4))
            tunnel = sandbox._session._tunnel
            await until(lambda: len(tunnel._connections) == MOST_CONNECTIONS)
            result = await call
            assert result.stdout == f"{MOST_CONNECTIONS + 50}\n"
            # Where buffers of sockets count as memory, what fills them may end before its time.
            assert result.timed_out or result.oom_killed
            await until(lambda: not tunnel._connections)
            assert (await sandbox._session.stats())["memory"] < 128 * MIB

    arena.attack(attack)


def test_code_that_floods_gets_its_share_and_no_more(arena: Arena) -> None:
    async def drop(reader: Reader, writer: Writer) -> None:
        await reader.read(1)

    # New connections without end, and as many bytes as go, one at a time.
    code = """
def bytewise(s):
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while True: s.send(b"x")
    except OSError: pass
while True: bytewise(connect())
"""

    async def attack(sandbox: DockerSandbox) -> None:
        async with serving(drop) as address:
            program = ["python3", "-c", CONNECT + code, str(await sandbox.forward(address))]
            call = asyncio.create_task(sandbox.exec(program, timeout=3))
            while not call.done():
                assert (await sandbox.exec("echo fine")).stdout == "fine\n"

    arena.attack(attack)
