"""Tunnels: what runs inside reaches one address of this machine's, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable

from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.selfcheck.check import Skipped, check, expect, refusal, require

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SIZE = 8 * 2**20
CONNECT = """
import json, os, socket, sys, threading
def connect(): return socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
def rest(s):
    data = b""
    while more := s.recv(2**20): data += more
    return data
"""
# Prints the targets that could be reached.
ATTEMPTS = """
import json, os, socket, sys
targets = json.load(sys.stdin)
reached = []
def attempt(where, family, kind, address, send=None):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(1)
            s.connect(address)
            if send: s.send(send)
        reached.append(where)
    except OSError: pass
for host in targets["hosts"]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in targets["ports"]:
        attempt(f"{host} port {port}", family, socket.SOCK_STREAM, (host, port))
    if host not in ("127.0.0.1", "::1"):
        attempt(f"{host} by UDP", family, socket.SOCK_DGRAM, (host, 53), b"x")
for path in targets["unix"]:
    attempt(path, socket.AF_UNIX, socket.SOCK_STREAM, path.replace("@", chr(0)))
try:
    socket.getaddrinfo("example.com", 80)
    reached.append("a name server")
except OSError: pass
print(json.dumps(reached))
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, and end when it ends."""
    while data := await reader.read(2**18):
        writer.write(data)
        await writer.drain()


def _safely(serve: Serve) -> Serve:
    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await serve(reader, writer)
        writer.close()

    return serve_and_close


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[str, int]]:
    """Serve on a port of this machine's loopback."""

    async with await asyncio.start_server(_safely(serve), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[:2]


async def run(sandbox: Sandbox, port: int, code: str) -> ExecResult:
    """Run a program that finds ``connect()`` and ``rest()``."""
    return await sandbox.exec(["python3", "-c", CONNECT + code, str(port)], timeout=60)


@check("tunnel", "a program reaches the address, on a port that is chosen or given")
async def reached(sandbox: Sandbox) -> None:
    code = "s = connect(); s.sendall(b'hello'); print(s.recv(100))"
    async with serving(echo) as address:
        port = await sandbox.forward(address)
        expect("what the program read", "b'hello'\n", (await run(sandbox, port, code)).stdout)
        with socket.create_server(("127.0.0.1", 0)) as free:
            given = free.getsockname()[1]
        expect("the port", given, await sandbox.forward(address, port=given))
        expect("what it read there", "b'hello'\n", (await run(sandbox, given, code)).stdout)
        with refusal(OSError, "a port that is taken"):
            await sandbox.forward(address, port=port)
    with refusal(ValueError, "a port that is none"):
        await sandbox.forward(address, port=2**16)
    with refusal(ValueError, "an address that is none"):
        await sandbox.forward(("127.0.0.1", 0))


@check("tunnel", "a Unix socket is an address too")
async def unix(sandbox: Sandbox) -> None:
    code = "s = connect(); s.sendall(b'hello'); print(s.recv(100))"
    with tempfile.TemporaryDirectory(prefix="vf-self-check-") as folder:
        path = f"{folder}/socket"
        async with await asyncio.start_unix_server(_safely(echo), path):
            result = await run(sandbox, await sandbox.forward(path), code)
    expect("what the program read", "b'hello'\n", result.stdout)


@check("tunnel", "bodies come whole both ways at once, and calls are answered meanwhile")
async def large(sandbox: Sandbox) -> None:
    code = f"""
import hashlib
digests = {{}}
def one(n):
    s, data = connect(), bytes(range(n, 251)) * ({SIZE} // 251)
    threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))).start()
    digests[n] = hashlib.sha256(rest(s)).hexdigest()
threads = [threading.Thread(target=one, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*(digests[n] for n in range(3)))
"""
    payloads = [bytes(range(n, 251)) * (SIZE // 251) for n in range(3)]
    expected = [hashlib.sha256(payload).hexdigest() for payload in payloads]
    async with serving(echo) as address:
        flow = asyncio.ensure_future(run(sandbox, await sandbox.forward(address), code))
        answered = 0
        while not flow.done():
            await sandbox.exec(["true"])
            answered += not flow.done()
        result = await flow
    expect("the SHA-256 of what three connections read", expected, result.stdout.split())
    require(answered > 0, "calls answered while the bodies were on their way", answered)


@check("tunnel", "either side may end first, and be sent more")
async def half_closed(sandbox: Sandbox) -> None:
    received = asyncio.get_running_loop().create_future()

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read()))

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"go")
        writer.write_eof()
        received.set_result(await reader.read())

    async with serving(count) as one, serving(first) as other:
        code = "s = connect(); s.sendall(bytes(10**6)); s.shutdown(1); print(rest(s))"
        result = await run(sandbox, await sandbox.forward(one), code)
        expect("the answer after the end", "b'1000000'\n", result.stdout)
        code = "s = connect(); print(rest(s)); s.sendall(b'more')"
        result = await run(sandbox, await sandbox.forward(other), code)
        expect("what came before the end", "b'go'\n", result.stdout)
        expect("what came after the other's end", b"more", await asyncio.wait_for(received, 20))


@check("tunnel", "an address where nobody listens is a broken connection")
async def refused(sandbox: Sandbox) -> None:
    async with serving(echo) as address:
        pass
    code = """
try: print(rest(connect()))
except ConnectionError: print("broken")
"""
    result = await run(sandbox, await sandbox.forward(address), code)
    expect("what the program met", "broken\n", result.stdout)


@check("tunnel", "the address is the only thing that can be reached")
async def nothing_else(sandbox: Sandbox) -> None:
    ours = os.readlink("/proc/self/ns/net")
    if (await sandbox.exec(["readlink", "/proc/self/ns/net"])).stdout.strip() == ours:
        raise Skipped("it shares this machine's network")
    connections: list[object] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer.get_extra_info("peername"))

    hidden = f"vf-self-check-{secrets.token_hex(8)}"  # an abstract socket, which no file protects
    async with (
        serving(echo) as address,
        serving(record) as (_, port),
        await asyncio.start_unix_server(_safely(record), f"\0{hidden}"),
    ):
        inner = await sandbox.forward(address)
        targets = {
            "hosts": ["127.0.0.1", "::1", *_addresses()],
            "ports": sorted({port, address[1], 22, 53, 80} - {inner}),
            "unix": [f"@{hidden}", *ENGINES],
        }
        probe = ["python3", "-c", ATTEMPTS]
        result = await sandbox.exec(probe, input=json.dumps(targets), timeout=100)
    require(result.ok, "attempts that come to an end", result)
    expect("what else could be reached", [], json.loads(result.stdout))
    expect("who reached this machine's other listeners", [], connections)


ENGINES = ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"]


def _addresses() -> list[str]:
    """Return addresses to which a network has a route: this machine's, metadata, nobody's."""
    addresses = {"169.254.169.254", "172.17.0.1", "192.0.2.1", "2001:db8::1", "fd00:ec2::254"}
    with contextlib.suppress(OSError):
        addresses |= {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, and says by which address it would
        addresses.add(probe.getsockname()[0])
    return sorted(address for address in addresses if not address.startswith(("127.", "::1")))
