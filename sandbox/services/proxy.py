"""A sandbox's only network access: an HTTP proxy in this process, with an allow-list.

A sandbox has no network. Its programs find the proxy in their environment, and reach it by
:meth:`~vf.sandbox.contract.Sandbox.forward`. It takes requests for ``http:`` URLs, and ``CONNECT``
for everything else that is TCP, whose data it neither reads nor changes. So the list restricts
connections, by host and port, not their content.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

from vf.runtime.temporary import make_temporary_folder
from vf.runtime.workers import in_thread
from vf.sandbox.services.allow import AllowList, Ip, Target
from vf.sandbox.services.requests import BadRequest, Request, read_request

PROXY_PORT = 3128  # on a sandbox's own loopback
CONNECTIONS = 128  # at once, of one proxy
HEAD = 2**15  # bytes of a request before its body
HEAD_TIMEOUT = 30.0  # seconds until all of them must have come
CONNECT_TIMEOUT = 20.0  # seconds for the name and the connection
IDLE = 300.0  # seconds without a byte in either direction
PIECE = 2**16  # bytes
LOOKUPS = 2  # at once
HOSTS_COUNTED = 1000  # distinct ones; the rest are counted together
OTHERS = "(other hosts)"
FORBIDDEN = "403 Forbidden"


@dataclass(frozen=True, slots=True)
class ProxyStats:
    """Counts of a proxy's requests, by ``host:port``.

    Attributes:
        reached: Connections made.
        refused: Connections refused because of the list.
        failed: Connections that were allowed and could not be made.
    """

    reached: dict[str, int]
    refused: dict[str, int]
    failed: dict[str, int]


class Proxy:
    """An HTTP proxy on a Unix socket of its own. Used as ``async with Proxy([...]) as proxy``.

    Attributes:
        address: The socket's path: for :meth:`~vf.sandbox.contract.Sandbox.forward`.

    Args:
        allow: The hosts that may be reached; see :class:`~vf.sandbox.services.allow.AllowList`.
        idle: Seconds without a byte after which a connection ends.

    Raises:
        ConfigError: If an entry of ``allow`` is invalid.
    """

    def __init__(self, allow: Iterable[str] = (), *, idle: float = IDLE) -> None:
        self._list = AllowList(allow)
        self._idle = idle
        self._folder = ""
        self._server: asyncio.AbstractServer | None = None
        self._tasks: dict[asyncio.Task[None], tuple[Target, Ip] | None] = {}
        # Separate threads: the owner of a name can make its lookup slow, and asyncio's few threads
        # have other users.
        self._resolver = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="vf-resolver")
        self._reached, self._refused = Counter[str](), Counter[str]()
        self._failed = Counter[str]()
        self.address = ""

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._folder = str(await in_thread(make_temporary_folder, "proxy"))
        self.address = os.path.join(self._folder, "socket")
        try:
            self._server = await asyncio.start_unix_server(self._accept, self.address, limit=HEAD)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """End every connection, and stop listening."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._resolver.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def allow(self, entries: Iterable[str]) -> None:
        """Replace the allow-list; connections that it does not permit are closed.

        Raises:
            ConfigError: If an entry is invalid; nothing is changed then.
        """
        self._list = AllowList(entries)
        for task, leads in self._tasks.items():
            if leads is not None and not self._list.permits(*leads):
                task.cancel()

    def stats(self) -> ProxyStats:
        """Return the counts of requests so far."""
        return ProxyStats(dict(self._reached), dict(self._refused), dict(self._failed))

    @staticmethod
    def environ(port: int, direct: Sequence[str] = ()) -> dict[str, str]:
        """Return the environment variables by which programs find it.

        Args:
            port: The port inside, which ``forward`` returned.
            direct: Hosts that are reached without it: side services.
        """
        url, excluded = f"http://127.0.0.1:{port}", ",".join(["localhost", "127.0.0.1", *direct])
        variables = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url)
        variables["NO_PROXY"] = excluded
        return variables | {name.lower(): value for name, value in variables.items()}

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request, until its connection ends."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT):
                request = await read_request(reader)
            if len(self._tasks) > CONNECTIONS:
                raise BadRequest("too many connections at once", "503 Service Unavailable")
            await self._carry(request, reader, writer)
        except BadRequest as error:
            await _answer(writer, error)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client is gone, or silent
        finally:
            writer.transport.abort()

    async def _carry(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        target = request.target
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                address, (remote, onward) = await self._connect(target)
        except BadRequest:
            _count(self._refused, target)
            raise
        except (OSError, TimeoutError) as error:
            _count(self._failed, target)
            reason = str(error) or f"no answer within {CONNECT_TIMEOUT:g} s"
            raise BadRequest(f"{target} cannot be reached: {reason}", "502 Bad Gateway") from None
        try:
            # Nothing was awaited since the address was checked.
            task = asyncio.current_task()
            assert task is not None
            self._tasks[task] = (target, address)
            _count(self._reached, target)
            if request.head:
                onward.write(request.head)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._relay((reader, onward), (remote, writer), once=bool(request.head))
        finally:
            onward.transport.abort()

    async def _connect(
        self, target: Target
    ) -> tuple[Ip, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to an address that was checked, by its number: no name is looked up twice.

        Raises:
            BadRequest: If the list does not allow it.
            OSError: If it does not respond.
        """
        if not self._list.may_request(target):
            raise BadRequest(f"{target} is not on this sandbox's list of allowed hosts", FORBIDDEN)
        addresses = await self._look_up(target)
        last: OSError | None = None
        for address in addresses:
            if not self._list.permits(target, address):
                continue
            try:
                ends = await asyncio.open_connection(str(address), target.port, limit=PIECE)
            except OSError as error:
                last = error
                continue
            if self._list.permits(target, address):  # the list may have changed meanwhile
                return address, ends
            ends[1].transport.abort()
        if last is not None:
            raise last
        resolved = ", ".join(map(str, addresses))
        subject = (
            f"{target} leads to {resolved}, which" if isinstance(target.host, str) else str(target)
        )
        raise BadRequest(
            f"{subject} is not public: such an address has to be on the list of allowed hosts "
            "itself",
            FORBIDDEN,
        )

    async def _look_up(self, target: Target) -> list[Ip]:
        if not isinstance(target.host, str):
            return [target.host]
        loop = asyncio.get_running_loop()
        texts = await loop.run_in_executor(self._resolver, _addresses, target.host, target.port)
        return [ip_address(text) for text in texts]

    async def _relay(
        self,
        out: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        back: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        once: bool,
    ) -> None:
        """Copy bytes both ways until both have ended; ``once``: until the answer has.

        Raises:
            TimeoutError: If nothing came any more.
            OSError: If one end broke.
        """
        loop = asyncio.get_running_loop()

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(PIECE):
                clock.reschedule(loop.time() + self._idle)
                sink.write(data)
                await sink.drain()
            sink.write_eof()

        pumps = [loop.create_task(pump(*out)), loop.create_task(pump(*back))]
        try:
            async with asyncio.timeout(self._idle) as clock:
                left = set(pumps)
                while left and not (once and pumps[1].done()):
                    done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                await _close(back[1])
                await _close(out[1])
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _answer(writer: asyncio.StreamWriter, error: BadRequest) -> None:
    body = f"{error}\n".encode()
    head = f"HTTP/1.1 {error.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(HEAD_TIMEOUT):
            await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close it once everything is written."""
    writer.close()
    await writer.wait_closed()


def _count(counter: Counter[str], target: Target) -> None:
    key = str(target)
    counter[key if key in counter or len(counter) < HOSTS_COUNTED else OTHERS] += 1


def _addresses(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]).partition("%")[0] for item in entries))
