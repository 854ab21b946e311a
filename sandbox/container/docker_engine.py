"""The one connection to the container engine, usable from coroutines.

The SDK blocks, so its calls run in a few threads of their own: no more calls are under way at once
than there are threads, which is the back-pressure on an engine that starts only a few containers a
second anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.container.features import Features, features_of


class EngineProblem(ConfigError):
    """Containers cannot be run here as asked."""


class SdkMissing(EngineProblem):
    """The Python package ``docker`` is not installed."""


class EngineMissing(EngineProblem):
    """No engine answers at the address."""


class EngineForbidden(EngineProblem):
    """The engine's socket is there, but this user may not use it."""


class EngineUnsupported(EngineProblem):
    """The engine, or the way it is reached, lacks something that the sandbox needs."""


class ImageMissing(EngineProblem):
    """The image is not on this machine. Nothing is ever pulled while a run is under way."""


class ImageUnfit(EngineProblem):
    """The image cannot be used: no Python 3, or it asks for what would weaken the sandbox."""


class RuntimeUnknown(EngineProblem):
    """The engine does not know the runtime."""


class LimitNotEnforced(EngineProblem):
    """The kernel or the engine would ignore a limit, and code could take the host down."""


CALLS_AT_ONCE = 8
CONNECT_TIMEOUT = 20  # seconds until the engine must have said which version it is
CALL_TIMEOUT = 120  # seconds without an answer from the engine
NOT_THERE = 404
IN_PROGRESS = 409

START_IT = (
    "Install and start one (Debian: `apt-get install docker.io`, then `systemctl start docker`), "
    "or point DOCKER_HOST at one"
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
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._features: Features | None = None
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="vf-docker")

    @classmethod
    def connect(cls) -> Engine:
        """Connect to the engine that ``DOCKER_HOST`` names, or the local one. Blocks briefly.

        Raises:
            SdkMissing: The Python package ``docker`` is not installed.
            EngineMissing: Nothing answers.
            EngineForbidden: This user may not talk to it.
            EngineUnsupported: It is reached by TLS or SSH, whose streams cannot be held open.
        """
        try:
            import docker
            import docker.utils
        except ImportError as error:
            raise SdkMissing(
                "the sandbox needs the Python package docker: pip install 'vf-rl[sandbox]'"
            ) from error
        settings = docker.utils.kwargs_from_env()
        address = settings.get("base_url") or "unix:///var/run/docker.sock"
        if settings.get("tls") or address.startswith(("ssh:", "https:", "npipe:")):
            raise EngineUnsupported(
                f"the engine at {address} is reached by TLS, SSH or a named pipe, and the sandbox "
                "speaks only over Unix and plain TCP sockets: forward the engine's socket "
                "(`ssh -L /tmp/engine.sock:/var/run/docker.sock HOST`) and set "
                "DOCKER_HOST=unix:///tmp/engine.sock"
            )
        try:
            client = docker.APIClient(**settings, version="auto", timeout=CONNECT_TIMEOUT)
            client.timeout = CALL_TIMEOUT
        except Exception as error:
            if any(isinstance(cause, PermissionError) for cause in _causes(error)):
                raise EngineForbidden(
                    f"this user may not use the engine at {address}: add it to the group docker "
                    "(`usermod -aG docker $USER`, then log in again) or run as root"
                ) from error
            raise EngineMissing(f"no container engine answers at {address}. {START_IT}") from error
        return cls(client)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the SDK's client in a thread.

        Raises:
            EngineRefused: The engine answered with an error.
            SandboxError: The engine did not answer.
        """
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(
            self._threads, partial(self.call_now, method, *args, **kwargs)
        )
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            # Nothing stops the thread: what it makes has to be there before it can be removed.
            while not answer.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([answer])
            if not answer.cancelled():
                answer.exception()  # nobody asks any more
            raise

    def call_now(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the SDK's client in this thread. Raises as ``call`` does.

        What comes piece by piece is waited for: its end may be an error too.
        """
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            answer = getattr(self.client, method)(*args, **kwargs)
            return list(answer) if isinstance(answer, Generator) else answer
        except APIError as error:
            said = error.explanation or str(error)
            status = getattr(error.response, "status_code", None) or 500
            raise EngineRefused(f"the engine refused {method}: {said}", status) from error
        except (DockerException, RequestException) as error:
            raise SandboxError(f"the engine did not answer {method}: {error}") from error

    async def features(self) -> Features:
        """Return what the engine can do. It is asked once.

        Raises:
            SandboxError: It does not answer.
        """
        if self._features is None:
            self._features = features_of(await self.call("info"), await self.call("version"))
        return self._features

    async def attach(self, container: str) -> socket.socket:
        """Attach to a container's standard streams and return the raw, non-blocking socket.

        Raises:
            EngineRefused: There is no such container, say.
        """
        ends = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        held = await self.call("attach_socket", container, ends)
        raw: socket.socket = getattr(held, "_sock", held)
        # The SDK ties the socket's life to its HTTP response's; ours is a descriptor of its own.
        own = raw.dup()
        held.close()
        raw.close()  # the response's own copy would hold the container for as long as that lives
        own.setblocking(False)
        return own

    async def remove(self, container: str, *, deadline: float = 60.0) -> None:
        """Kill and remove a container with its volumes, and return once it is gone.

        Raises:
            SandboxError: It is still there after ``deadline`` seconds.
        """
        try:
            async with asyncio.timeout(deadline):
                while True:
                    if await self._is_gone(container):
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise SandboxError(
                f"container {container} is still there {deadline:.0f} s after its removal was asked"
            ) from None

    async def _is_gone(self, container: str) -> bool:
        try:
            await self.call("remove_container", container, force=True, v=True)
        except EngineRefused as error:
            if error.status != IN_PROGRESS:
                if error.status != NOT_THERE:
                    raise
                return True
        return False

    def close(self) -> None:
        """Close the connection. Calls under way are waited for."""
        self._threads.shutdown(wait=True)
        self.client.close()


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
