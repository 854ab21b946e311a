"""Several engines: each sandbox is made where there are the fewest episodes per core.

An engine that stops responding is left out until it responds again. The calls of its sandboxes
fail, and their episodes are run again elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, Self

from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine, EngineMissing, ImageMissing
from vf.sandbox.container.doctor import check_engine
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.image import inspected
from vf.sandbox.contract import Sandbox
from vf.sandbox.hosting.host_connection import FIRST_DELAY, LONGEST_DELAY, H, HostConnection
from vf.sandbox.images.builds import ImageFailed
from vf.sandbox.spec import SandboxSpec

log = logging.getLogger("vf.sandbox")

PATIENCE = 300.0  # seconds that an episode waits while no engine responds


class Hosts(Generic[H]):
    """Makes sandboxes on several engines. Used as ``async with Hosts(...) as hosts``.

    Args:
        addresses: The engines' addresses; None is that of ``DOCKER_HOST``.
        open_host: A function that connects to one, checks it, and destroys all of its sandboxes at
            the end.
        images: The images that every host needs. If one is missing, it is copied from another host.

    Raises:
        ConfigError: If, on entering, no engine responds, or one of those that do cannot be used.
    """

    def __init__(
        self,
        addresses: Sequence[Address | None],
        open_host: Callable[[Address | None], AbstractAsyncContextManager[H]],
        *,
        images: Sequence[str] = (),
    ) -> None:
        self._addresses = addresses
        self._open_host = open_host
        self._images = images
        self._connections: dict[Address | None, HostConnection[H]] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect to all engines, and return once each has responded or failed."""
        first: list[asyncio.Future[None]] = []
        try:
            for address in self._addresses:
                first.append(asyncio.get_running_loop().create_future())
                self._spawn(self._keep(address, first[-1]))
            ends = await asyncio.gather(*first, return_exceptions=True)
            _insist(ends)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Destroy every sandbox."""
        await self.close()

    async def close(self) -> None:
        """Destroy every sandbox, and disconnect from the engines."""
        tasks = list(self._tasks)
        for task in tasks:
            if not task.cancelling():  # as by a loop that ends: a second time would end the cleanup
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def hosts(self) -> list[H]:
        """The hosts whose engines respond."""
        return [connection.host for connection in self._connections.copy().values()]

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Open a sandbox on the host with the shortest queue; it is destroyed at the end.

        If that host is lost meanwhile, another one is used.

        Raises:
            ConfigError: If none can be made; says how to fix it.
            SandboxError: If none could be made, or no engine responded in time.
        """
        while True:
            connection = await self._shortest()
            async with AsyncExitStack() as stack:
                stack.enter_context(connection.used())
                sandbox = await self._enter(connection, spec, stack)
                if sandbox is not None:
                    yield sandbox
                    return

    async def prefetch(self, spec: SandboxSpec | None, count: int = 1) -> None:
        """Build or pull the image of a spec on every host.

        Args:
            spec: The spec of the sandboxes.
            count: The number of requests that will follow.

        Raises:
            ConfigError: If sandboxes cannot be made from it; says how to fix it.
            SandboxError: If it cannot be built or pulled on one of them.
        """

        async def on(connection: HostConnection[H]) -> None:
            await self._bring(connection, spec)
            await connection.host.prefetch(spec, -(-count // len(visits)))  # its share, rounded up

        visits = list(self._connections.values())
        await asyncio.gather(*(on(connection) for connection in visits))

    async def _shortest(self) -> HostConnection[H]:
        """Wait until an engine responds; return the one with the shortest queue."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._connections:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            addresses = ", ".join(str(address or "DOCKER_HOST") for address in self._addresses)
            message = f"no container engine answered for {PATIENCE:g} s: {addresses}"
            raise SandboxError(message) from None
        connections = [
            self._connections[address]
            for address in self._addresses
            if address in self._connections
        ]
        return min(connections, key=lambda connection: connection.queue)

    async def _enter(
        self, connection: HostConnection[H], spec: SandboxSpec | None, stack: AsyncExitStack
    ) -> Sandbox | None:
        """Open a sandbox on one host; return None if that was lost meanwhile."""

        async def enter() -> Sandbox:
            await self._bring(connection, spec)
            return await stack.enter_async_context(connection.host.open(spec))

        entering, lost = (
            asyncio.ensure_future(enter()),
            asyncio.ensure_future(connection.lost.wait()),
        )
        try:
            await asyncio.wait({entering, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                return None
            sandbox = entering.result()
        except ImageFailed:  # that is the task's doing, and the engine is well
            raise
        except SandboxError:
            connection.failed()
            if await connection.host.engine.answers():
                raise
            return None
        finally:
            lost.cancel()
            entering.cancel()
            await asyncio.wait({entering})
            entering.cancelled() or entering.exception()  # so that asyncio does not log it
        connection.delay, connection.avoided_until = FIRST_DELAY, 0.0
        return sandbox

    async def _bring(self, connection: HostConnection[H], spec: SandboxSpec | None) -> None:
        """Copy a spec's image, a snapshot perhaps, from another host if only that has it."""
        if spec is None or spec.image is None or len(self._connections) < 2:
            return
        if spec.image not in connection.images:
            work = asyncio.to_thread(self._copy, spec.image, connection.host.engine)
            connection.images[spec.image] = asyncio.create_task(work)
        try:
            await asyncio.shield(connection.images[spec.image])
        except SandboxError:
            connection.images.pop(spec.image, None)
            raise

    def _copy(self, image: str, to: Engine) -> None:
        """Copy an image that ``to`` lacks and another engine has; nothing else."""
        if inspected(to, image) is not None:
            return
        for connection in list(self._connections.values()):
            source = connection.host.engine
            if source is not to and inspected(source, image) is not None:
                log.info("copying the image %s from %s to %s", image, source, to)
                to.copy_image(image, source)
                return

    async def _keep(self, address: Address | None, first: asyncio.Future[None]) -> None:
        """Keep a host at an address connected whenever its engine responds.

        Args:
            address: The engine's address.
            first: A future that gets the result of the first attempt.
        """
        delay = FIRST_DELAY
        while True:
            connected: asyncio.Future[HostConnection[H]] = (
                asyncio.get_running_loop().create_future()
            )
            self._spawn(self._hold(address, connected))
            try:
                connection = await connected
            except (ConfigError, SandboxError) as error:
                if not first.done():
                    first.set_exception(error)
                log.warning("an engine is left out and tried again in %g s: %s", delay, error)
                if isinstance(error, ImageMissing):
                    await self._supply(address)
            else:
                delay = FIRST_DELAY
                if not first.done():
                    first.set_result(None)
                await connection.lost.wait()
                log.warning("%s does not answer: it is left out", connection.host.engine)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    async def _hold(
        self, address: Address | None, connected: asyncio.Future[HostConnection[H]]
    ) -> None:
        """Keep a host open until its engine is lost, and then until it is unused.

        Args:
            address: The engine's address.
            connected: A future that gets the connection once the host can be used, or the error.
        """
        try:
            async with self._open_host(address) as host:
                connection = HostConnection(host, (await host.engine.features()).cores)
                self._connections[address] = connection
                self._changed.set()
                connected.set_result(connection)
                log.info("%s answers", host.engine)
                try:
                    await connection.watch()
                finally:
                    self._connections.pop(address)
                    host.engine.lost = True
                    connection.lost.set()
                await connection.end()
        except (ConfigError, SandboxError) as error:
            if connected.done():
                log.warning("an engine was left with an error: %s", error)
            else:
                connected.set_exception(error)

    async def _supply(self, address: Address | None) -> None:
        """Copy the images that every host needs to an engine that has not got them."""

        def copy() -> None:
            with contextlib.closing(Engine.connect(address)) as engine:
                for image in self._images:
                    self._copy(image, engine)

        try:
            await asyncio.to_thread(copy)
        except (ConfigError, SandboxError) as error:
            log.warning("an image could not be copied: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _insist(ends: Sequence[BaseException | None]) -> None:
    """Raise the first error that prevents the use of hosts, given the outcome for each.

    If one can be used, another may be missing, or lack an image, which is then copied to it.
    """
    passing = (EngineMissing, ImageMissing) if None in ends else ()
    for end in ends:
        if end is not None and not isinstance(end, passing):
            raise end


async def check_hosts(profile: Profile, addresses: Sequence[Address | None]) -> None:
    """Check that containers with this profile can be made.

    Raises:
        ConfigError: If no engine responds, or one of those that do cannot be used.
    """
    checks = (asyncio.to_thread(check_engine, profile, address) for address in addresses)
    ends = await asyncio.gather(*checks, return_exceptions=True)
    try:
        _insist(ends)
    except SandboxError as error:
        raise ConfigError(f"a container engine does not work: {error}") from error


async def answering(addresses: Sequence[Address | None]) -> Address | None:
    """Return the first address at which an engine responds; the last one is not tried.

    Raises:
        ConfigError: If an engine that responds cannot be used.
    """
    for address in addresses[:-1]:
        try:
            engine = await asyncio.to_thread(Engine.connect, address)
        except EngineMissing as error:
            log.warning("an engine is left out: %s", error)
        else:
            await asyncio.to_thread(engine.close)
            return address
    return addresses[-1]
