"""The proxy: what it lets through, what it refuses, and what happens to connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import Profile
from vf.sandbox.services import proxy as proxy_module
from vf.sandbox.services.proxy import Proxy

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a web server that says what it was asked, and stays open as HTTP/1.1 does."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
    said = head + body
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
    if b"Connection: close" not in head:
        await reader.read()
    writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] = answer,
) -> AsyncIterator[int]:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def ask(proxy: Proxy, text: str) -> str:
    """Send a request and return all that comes back."""
    reader, writer = await asyncio.open_unix_connection(proxy.address)
    writer.write(text.encode())
    said = await reader.read()
    writer.close()
    return said.decode()


async def connect(proxy: Proxy, where: str) -> Ends:
    reader, writer = await asyncio.open_unix_connection(proxy.address)
    writer.write(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
    said = await reader.readuntil(b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200 ")
    return reader, writer


def get(url: str, *headers: str) -> str:
    return "\r\n".join([f"GET {url} HTTP/1.1", *headers, "", ""])


def test_a_request_reaches_its_host_and_only_what_concerns_it() -> None:
    async def body() -> None:
        async with serving() as port, Proxy([f"127.0.0.1:{port}"]) as proxy:
            said = await ask(
                proxy,
                f"POST http://user:secret@127.0.0.1:{port}/a?b=c#d HTTP/1.1\r\nHost: evil\r\n"
                "Proxy-Authorization: Basic eA==\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n"
                "X-Kept: 2\r\nContent-Length: 4\r\n\r\nbody",
            )
            assert said.partition("\r\n\r\n")[2] == (
                f"POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
                "X-Kept: 2\r\nContent-Length: 4\r\n\r\nbody"
            )
            assert proxy.stats().reached == {f"127.0.0.1:{port}": 1}

    asyncio.run(body())


def test_a_tunnel_carries_both_ways_until_both_have_ended() -> None:
    async def body() -> None:
        async with serving(echo) as port, Proxy(["127.0.0.0/8"]) as proxy:
            reader, writer = await connect(proxy, f"127.0.0.1:{port}")
            sent = bytes(range(256)) * 8192
            writer.write(sent)
            writer.write_eof()
            assert len(await read_all(reader)) == len(sent)
            writer.close()

    asyncio.run(body())


async def read_all(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while more := await reader.read(2**20):
        data += more
    return data


def test_what_is_not_listed_is_refused_and_counted() -> None:
    async def body() -> None:
        async with serving() as port, Proxy(["example.com", "*.test"]) as proxy:
            said = await ask(proxy, get(f"http://127.0.0.1:{port}/"))
            assert said.startswith("HTTP/1.1 403 ")
            assert f"127.0.0.1:{port} is not on this sandbox's list of allowed hosts" in said
            said = await ask(proxy, "CONNECT evil.net:443 HTTP/1.1\r\n\r\n")
            assert said.startswith("HTTP/1.1 403 ")
            await ask(proxy, "CONNECT evil.net:443 HTTP/1.1\r\n\r\n")
            assert proxy.stats().refused == {f"127.0.0.1:{port}": 1, "evil.net:443": 2}
            assert proxy.stats().reached == {}

    asyncio.run(body())


def test_a_name_that_leads_to_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is judged, and connected to by its number: the name is looked up once."""
    asked: list[str] = []

    def addresses(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    monkeypatch.setattr(proxy_module, "_addresses", addresses)

    async def body() -> None:
        async with serving() as port, Proxy(["*", "inner.test"]) as proxy:
            said = await ask(proxy, get(f"http://inner.test:{port}/"))
            assert said.startswith("HTTP/1.1 403 ")
            assert f"inner.test:{port} leads to 127.0.0.1, which is not public" in said
            proxy.allow(["inner.test", "127.0.0.1"])
            assert (await ask(proxy, get(f"http://inner.test:{port}/"))).startswith("HTTP/1.1 200")
            assert asked == ["inner.test"] * 2
            await ask(proxy, get("http://elsewhere.test/"))
            assert asked == ["inner.test"] * 2  # what is not allowed is not even looked up

    asyncio.run(body())


def test_a_new_list_cuts_what_it_does_not_have() -> None:
    async def body() -> None:
        async with (
            serving(echo) as one,
            serving(echo) as two,
            Proxy([f"127.0.0.1:{one}", f"127.0.0.1:{two}"]) as proxy,
        ):
            cut, cut_writer = await connect(proxy, f"127.0.0.1:{one}")
            kept, kept_writer = await connect(proxy, f"127.0.0.1:{two}")
            proxy.allow([f"127.0.0.1:{two}"])
            with contextlib.suppress(ConnectionError):
                assert await cut.read() == b""
            kept_writer.write(b"still here")
            assert await kept.readexactly(10) == b"still here"
            said = await ask(proxy, get(f"http://127.0.0.1:{one}/"))
            assert said.startswith("HTTP/1.1 403 ")
            cut_writer.close()
            kept_writer.close()

    asyncio.run(body())


def test_a_connection_without_a_byte_ends() -> None:
    async def body() -> None:
        async with serving(echo) as port, Proxy([f"127.0.0.1:{port}"], idle=0.05) as proxy:
            reader, writer = await connect(proxy, f"127.0.0.1:{port}")
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(body())


def test_connections_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "CONNECTIONS", 2)

    async def body() -> None:
        async with serving(echo) as port, Proxy([f"127.0.0.1:{port}"]) as proxy:
            held = [await connect(proxy, f"127.0.0.1:{port}") for _ in range(2)]
            said = await ask(proxy, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")
            assert said.startswith("HTTP/1.1 503 ")
            for _, writer in held:
                writer.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET https://example.com/ HTTP/1.1\r\n\r\n", 400),
        ("CONNECT example.com HTTP/1.1\r\n\r\n", 400),
        ("CONNECT example.com:0 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT ex/ample:80 HTTP/1.1\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\nBad Header: x\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\nX: " + "x" * 2**16 + "\r\n\r\n", 431),
    ],
)
def test_a_wrong_request_is_answered(text: str, status: int) -> None:
    async def body() -> None:
        async with Proxy(["*"]) as proxy:
            assert (await ask(proxy, text)).startswith(f"HTTP/1.1 {status} ")

    asyncio.run(body())


def test_a_host_that_does_not_answer_is_a_bad_gateway() -> None:
    async def body() -> None:
        async with serving() as port:
            pass
        async with Proxy(["127.0.0.1"]) as proxy:
            said = await ask(proxy, get(f"http://127.0.0.1:{port}/"))
            assert said.startswith("HTTP/1.1 502 ")
            assert proxy.stats().failed == {f"127.0.0.1:{port}": 1}

    asyncio.run(body())


def test_the_variables_are_there_in_both_cases() -> None:
    found = Proxy.environ(8080, direct=["db"])
    assert found["HTTPS_PROXY"] == found["https_proxy"] == "http://127.0.0.1:8080"
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,db"
    assert {name.upper() for name in found} == {
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
    }


# Run inside: a page by HTTP, the same by a tunnel, and one that is not allowed.
FETCH = """
import http.client, os, sys, urllib.error, urllib.request
url = sys.argv[1]
print(urllib.request.urlopen(url, timeout=20).status)
tunnel = http.client.HTTPConnection(os.environ["https_proxy"].removeprefix("http://"), timeout=20)
tunnel.set_tunnel("127.0.0.1", int(url.strip("/").rpartition(":")[2]))
tunnel.request("GET", "/", headers={"Connection": "close"})
print(tunnel.getresponse().status)
try:
    urllib.request.urlopen("http://example.com/", timeout=20)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


def test_a_container_without_a_network_gets_out_only_by_the_proxy(
    engine: Engine, profile: Profile
) -> None:
    async def body() -> None:
        async with (
            serving() as port,
            Proxy([f"127.0.0.1:{port}"]) as proxy,
            await DockerSandbox.create(engine, profile) as box,
        ):
            inside = await box.forward(proxy.address)
            # Inside, 127.0.0.1 is another machine, which is not reached by the proxy usually.
            env = proxy.environ(inside) | {"no_proxy": ""}
            done = await box.exec(["python3", "-c", FETCH, f"http://127.0.0.1:{port}/"], env=env)
            assert done.stdout.split("\n")[:2] == ["200", "200"], done
            assert "403 example.com:80 is not on this sandbox's list" in done.stdout

    asyncio.run(body())
