"""A connection to a container engine, usable from coroutines.

The SDK blocks, so its calls run in a thread pool. Its size limits the concurrent calls to an engine
that starts only a few containers a second anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from vf.runtime.errors import ConfigError, HostLost, SandboxError
from vf.sandbox.container.address import Address
from vf.sandbox.container.features import Features, features_of
from vf.sandbox.container.ssh_tunnel import SshTunnel, TunnelFailed
from vf.sandbox.container.stream import Refusal, Stream


class EngineProblem(ConfigError):
    """Containers cannot run here with these settings."""


class EngineMissing(EngineProblem):
    """No engine answers at the address."""


class ImageMissing(EngineProblem):
    """The image is not on this machine. Nothing is ever pulled while a run is under way."""


class ImageUnfit(EngineProblem):
    """The image cannot be used: no Python 3, or it asks for what would weaken the sandbox."""


T = TypeVar("T")

CALLS_AT_ONCE = 8
PIECE = 2**20  # bytes of an answer that comes in pieces
CONNECT_TIMEOUT = 20  # seconds until the engine must have told its version
ANY_VERSION = "1.40"  # of the API, to ask for the engine's own
CALL_TIMEOUT = 120  # seconds without an answer from the engine
# A machine that vanished is noticed by the lack of answers to what the kernel sends it then.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
KEEPALIVE |= {"TCP_USER_TIMEOUT": 60_000}  # ms, while it has not acknowledged what was sent
PING_TIMEOUT = 10.0  # seconds
HTTP = ("tcp", "http", "https")
NOT_THERE = 404
INTERNAL = 500
IN_PROGRESS = 409

START_IT = (
    "Install and start one (Debian: `apt-get install docker.io`, then `systemctl start docker`), "
    "or point DOCKER_HOST at one. Tasks without images of their own need none with "
    'sandbox = "bubblewrap"'
)


class EngineRefused(SandboxError):
    """The engine answered a request with an error; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """A Docker engine.

    Args:
        client: The SDK's low-level client.
        address: The engine's address.
        tunnel: The tunnel to its socket, if it is on another machine.

    Attributes:
        address: The engine's address.
        live: The names of the containers that were made here and are not gone yet.
        lost: Whether it has stopped responding, so that another connection replaces this one.
        suspect: Set when it may have stopped responding, so that it is pinged now.

    Raises:
        OSError: If a certificate cannot be read.
    """

    def __init__(self, client: Any, address: Address, tunnel: SshTunnel | None = None) -> None:
        self.client = client
        self.address = address
        self.live: set[str] = set()
        self.suspect = asyncio.Event()
        self.lost = False
        self._tunnel = tunnel
        self._tls: ssl.SSLContext | None = address.context()
        self._features: Features | None = None
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="vf-docker")

    def __str__(self) -> str:
        """Return its name in messages."""
        return f"the engine at {self.address}"

    @classmethod
    def connect(cls, address: Address | None = None) -> Engine:
        """Connect to an engine. Blocks briefly.

        Args:
            address: The engine's address; None: that of ``DOCKER_HOST``, or this machine's.

        Raises:
            EngineMissing: If nothing responds.
            EngineProblem: If the Python package ``docker`` is not installed, this user may not use
                the engine, or the address or its certificates are invalid.
        """
        try:
            from docker.errors import TLSParameterError
        except ImportError as error:
            raise EngineProblem(
                "the sandbox needs the Python package docker: pip install 'vf-rl[sandbox]'"
            ) from error
        try:
            address = address or Address.from_environment()
            settings = address.client_settings()
        except (ValueError, OSError, TLSParameterError) as error:
            raise EngineProblem(f"no engine can be reached: {error}") from error
        tunnel = SshTunnel(address) if address.parts.scheme == "ssh" else None
        try:
            if tunnel:
                tunnel.ensure()
                settings = {"base_url": f"unix://{tunnel.path}"}
            version = _client(settings, ANY_VERSION, CONNECT_TIMEOUT).version(api_version=False)
            client = _client(settings, version["ApiVersion"], CALL_TIMEOUT)
            return cls(client, address, tunnel)
        except Exception as error:
            if tunnel:
                tunnel.close()
            raise _connection_problem(address, error) from error

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the SDK's client in a thread.

        Raises:
            EngineRefused: If the engine responded with an error.
            SandboxError: If the engine did not respond.
        """
        return await self._in_thread(partial(self.call_now, method, *args, **kwargs))

    async def stream(self, read: Callable[[Iterator[bytes]], T], method: str, *args: Any) -> T:
        """Call a method, and read its answer in chunks in the thread; raises as ``call`` does."""

        def work() -> T:
            with _errors_of(method):
                answer = getattr(self.client, method)(*args, chunk_size=PIECE)
                return read(iter(answer[0] if isinstance(answer, tuple) else answer))

        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        answer = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            # A thread cannot be stopped: what it makes has to be there before it can be removed.
            while not answer.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([answer])
            if not answer.cancelled():
                answer.exception()  # or asyncio would report that nobody retrieved it
            raise

    def call_now(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the SDK's client in this thread. Raises as ``call`` does.

        An answer in chunks is read until it ends, which may be with an error.
        """
        with _errors_of(method):
            answer = getattr(self.client, method)(*args, **kwargs)
            return list(answer) if isinstance(answer, Generator) else answer

    def copy_image(self, image: str, source: Engine) -> None:
        """Copy an image from another engine, through this process, in chunks. Blocks.

        Raises:
            EngineRefused: If the other engine does not have it, for instance.
            SandboxError: If one of them did not respond.
        """
        with _errors_of("get_image"):
            pieces = source.client.get_image(image)
        with _errors_of("load_image"):
            progress = list(self.client.load_image(pieces) or ())
        for line in progress:
            if "error" in line:
                raise SandboxError(
                    f"{image} could not be copied to {self.address}: {line['error']}"
                )

    async def stat(self, container: str, path: str) -> dict[str, Any] | None:
        """Return the engine's stat of a file in a container; None if there is no such file.

        Raises:
            EngineRefused: If the engine responded with another error.
            SandboxError: If it did not respond.
        """
        from docker.utils import decode_json_header

        base = f"{self.client.base_url}/v{self.client.api_version}"
        url = f"{base}/containers/{quote(container)}/archive"
        answer = await self.call("head", url, params={"path": path}, timeout=CALL_TIMEOUT)
        if answer.status_code == NOT_THERE:
            return None
        if not answer.ok:
            raise EngineRefused(f"the engine refused stat of {path}", answer.status_code)
        stat: dict[str, Any] = decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])
        return stat

    async def features(self) -> Features:
        """Return what the engine can do. Requested once.

        Raises:
            SandboxError: If it does not respond.
        """
        if self._features is None:
            self._features = features_of(await self.call("info"), await self.call("version"))
        return self._features

    async def attach(self, container: str) -> Stream:
        """Attach to a container's standard streams, and hold them.

        Raises:
            EngineRefused: If there is no such container, for instance.
            SandboxError: If the engine did not respond.
        """
        path = f"/v{self.client.api_version}/containers/{quote(container)}/attach"
        host = self.address.parts.hostname if self.address.parts.scheme in HTTP else None
        try:
            sock = await asyncio.to_thread(self._dial)
            return await Stream.open(
                sock,
                f"{path}?stdin=1&stdout=1&stderr=1&stream=1",
                host=host or "docker",
                tls=self._tls,
            )
        except Refusal as error:
            raise EngineRefused(f"the engine refused attach: {error}", error.status) from error
        except OSError as error:
            raise HostLost(f"the engine did not answer attach: {error}") from error

    def _dial(self) -> socket.socket:
        """Open a connection to the engine."""
        parts = self.address.parts
        if parts.scheme in HTTP:
            assert parts.hostname is not None
            sock = socket.create_connection((parts.hostname, self.address.port), CONNECT_TIMEOUT)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            return sock
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(CONNECT_TIMEOUT)
            sock.connect(self._tunnel.path if self._tunnel else self.address.path)
        except BaseException:
            sock.close()
            raise
        return sock

    async def answers(self, *, timeout: float = PING_TIMEOUT) -> bool:
        """Return whether the engine responds within ``timeout`` seconds.

        An ssh tunnel that has ended is reopened.
        """
        ping = asyncio.ensure_future(asyncio.to_thread(self._ping, timeout))
        done, _ = await asyncio.wait([ping], timeout=timeout)
        if not done:
            ping.add_done_callback(lambda late: late.cancelled() or late.exception())
        return bool(done) and ping.exception() is None

    def _ping(self, timeout: float) -> None:
        url = f"{self.client.base_url}/_ping"
        ping = partial(self.client.get, url, timeout=timeout)
        (self._tunnel.through(ping) if self._tunnel else ping()).raise_for_status()

    async def remove(self, container: str, *, deadline: float = 60.0) -> None:
        """Kill and remove a container with its volumes, and return once it is gone.

        Raises:
            SandboxError: If it is still there after ``deadline`` seconds.
        """
        refused: EngineRefused | None = None
        try:
            async with asyncio.timeout(deadline):
                while True:
                    try:
                        await self.call("remove_container", container, force=True, v=True)
                    except EngineRefused as error:
                        if error.status == NOT_THERE:
                            return
                        # Podman has an internal error for one that ends at this moment.
                        if error.status not in (IN_PROGRESS, INTERNAL):
                            raise
                        refused = error
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise SandboxError(
                f"container {container} is still there {deadline:.0f} s after its removal was asked"
            ) from refused

    def close(self) -> None:
        """Close the connection, after the calls in progress."""
        self._threads.shutdown(wait=True)
        self.client.close()
        if self._tunnel:
            self._tunnel.close()


def _client(settings: Mapping[str, Any], version: str, timeout: float) -> Any:
    import docker

    client = docker.APIClient(**settings, version=version, timeout=timeout)
    # Or REQUESTS_CA_BUNDLE would come before the engine's own authority, and the held-open streams
    # go through no proxy.
    client.trust_env = False
    return client


@contextlib.contextmanager
def _errors_of(method: str) -> Iterator[None]:
    """Turn the SDK's errors into ours."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as error:
        explanation = error.explanation or str(error)
        status = getattr(error.response, "status_code", None) or 500
        raise EngineRefused(f"the engine refused {method}: {explanation}", status) from error
    except (DockerException, RequestException) as error:
        raise HostLost(f"the engine did not answer {method}: {error}") from error


def _connection_problem(address: Address, error: Exception) -> EngineProblem:
    """Return the error that tells why an engine could not be reached."""
    if any(isinstance(cause, PermissionError) for cause in _causes(error)):
        return EngineProblem(
            f"this user may not use the engine at {address}: add it to the group docker "
            "(`usermod -aG docker $USER`, then log in again) or run as root"
        )
    if isinstance(error, TunnelFailed):
        return EngineMissing(f"the engine at {address} cannot be reached: {error}")
    if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return EngineProblem(
            f"the engine at {address} and its certificates do not go together: {error}"
        )
    return EngineMissing(f"no container engine answers at {address}. {START_IT}")


def _causes(error: BaseException | None) -> Iterator[object]:
    """Yield an exception, its causes, and what it wraps as arguments."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, BaseException):
            waiting += [item.__cause__, item.__context__, *item.args]
        elif isinstance(item, tuple):
            waiting += item
