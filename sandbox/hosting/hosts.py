"""Several engines: each sandbox is made where the fewest episodes are, for the cores there.

An engine that stops to answer is left out, and comes back when it answers again. What its
sandboxes were doing fails by itself, and is run again elsewhere.
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
from vf.sandbox.container.image import inspected
from vf.sandbox.container.profile import Profile
from vf.sandbox.contract import Sandbox
from vf.sandbox.hosting.visit import FIRST_REST, LONGEST_REST, H, Visit
from vf.sandbox.images.builds import ImageFailed
from vf.sandbox.spec import SandboxSpec

log = logging.getLogger("vf.sandbox")

PATIENCE = 300.0  # seconds that an episode waits while no engine answers


class Hosts(Generic[H]):
    """Makes sandboxes on several engines. Used as ``async with Hosts(...) as hosts``.

    Args:
        addresses: Where the engines are; None is the one that ``DOCKER_HOST`` names.
        open_host: Connects to one, checks it, and destroys all of its sandboxes at the end.
        images: Those that every host needs. Where one is missing it is copied from another host.

    Raises:
        ConfigError: On entering: no engine answers, or one of those that do cannot be used.
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
        self._up: dict[Address | None, Visit[H]] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect to all of them, and return once every one has answered or failed."""
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
        """Destroy every sandbox, and let go of the engines."""
        tasks = list(self._tasks)
        for task in tasks:
            if not task.cancelling():  # as by a loop that ends: a second time would end the cleanup
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def hosts(self) -> list[H]:
        """Those whose engines answer."""
        return [visit.host for visit in self._up.copy().values()]

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Open a sandbox on the host with the shortest queue; it is destroyed at the end.

        A host that is lost meanwhile is left for another one.

        Raises:
            ConfigError: None can be made; says how to fix it.
            SandboxError: None could be made, or no engine answered in time.
        """
        while True:
            visit = await self._shortest()
            async with AsyncExitStack() as stack:
                stack.enter_context(visit.used())
                sandbox = await self._enter(visit, spec, stack)
                if sandbox is not None:
                    yield sandbox
                    return

    async def prefetch(self, spec: SandboxSpec | None, count: int = 1) -> None:
        """Build or pull the image of a spec on every host.

        Args:
            spec: What sandboxes will be made from.
            count: How often it will be asked for.

        Raises:
            ConfigError: Sandboxes cannot be made from it; says how to fix it.
            SandboxError: It cannot be built or pulled on one of them.
        """

        async def on(visit: Visit[H]) -> None:
            await self._bring(visit, spec)
            await visit.host.prefetch(spec, -(-count // len(visits)))  # its share, rounded up

        visits = list(self._up.values())
        await asyncio.gather(*(on(visit) for visit in visits))

    async def _shortest(self) -> Visit[H]:
        """Wait until an engine answers; return the first of those with the least to do."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._up:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            where = ", ".join(str(address or "DOCKER_HOST") for address in self._addresses)
            late = f"no container engine answered for {PATIENCE:g} s: {where}"
            raise SandboxError(late) from None
        up = [self._up[address] for address in self._addresses if address in self._up]
        return min(up, key=lambda visit: visit.queue)

    async def _enter(
        self, visit: Visit[H], spec: SandboxSpec | None, stack: AsyncExitStack
    ) -> Sandbox | None:
        """Open a sandbox on one host; return None if that was lost meanwhile."""

        async def enter() -> Sandbox:
            await self._bring(visit, spec)
            return await stack.enter_async_context(visit.host.open(spec))

        entering, lost = asyncio.ensure_future(enter()), asyncio.ensure_future(visit.lost.wait())
        try:
            await asyncio.wait({entering, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                return None
            sandbox = entering.result()
        except ImageFailed:  # that is the task's doing, and the engine is well
            raise
        except SandboxError:
            visit.failed()
            if await visit.host.engine.answers():
                raise
            return None
        finally:
            lost.cancel()
            entering.cancel()
            await asyncio.wait({entering})
            entering.cancelled() or entering.exception()  # asked for, so that asyncio logs none
        visit.rest, visit.rests_until = FIRST_REST, 0.0
        return sandbox

    async def _bring(self, visit: Visit[H], spec: SandboxSpec | None) -> None:
        """Copy a spec's image, a snapshot perhaps, from another host if only that has it."""
        if spec is None or spec.image is None or len(self._up) < 2:
            return
        if spec.image not in visit.images:
            work = asyncio.to_thread(self._copy, spec.image, visit.host.engine)
            visit.images[spec.image] = asyncio.create_task(work)
        try:
            await asyncio.shield(visit.images[spec.image])
        except SandboxError:
            visit.images.pop(spec.image, None)
            raise

    def _copy(self, image: str, to: Engine) -> None:
        """Copy an image that ``to`` lacks and another engine has; nothing else."""
        if inspected(to, image) is not None:
            return
        for visit in list(self._up.values()):
            source = visit.host.engine
            if source is not to and inspected(source, image) is not None:
                log.info("copying the image %s from %s to %s", image, source, to)
                to.copy_image(image, source)
                return

    async def _keep(self, address: Address | None, first: asyncio.Future[None]) -> None:
        """Have a host at an address whenever its engine answers.

        Args:
            address: Where.
            first: Told how the first try has ended.
        """
        rest = FIRST_REST
        while True:
            up: asyncio.Future[Visit[H]] = asyncio.get_running_loop().create_future()
            self._spawn(self._visit(address, up))
            try:
                visit = await up
            except (ConfigError, SandboxError) as error:
                if not first.done():
                    first.set_exception(error)
                log.warning("an engine is left out and tried again in %g s: %s", rest, error)
                if isinstance(error, ImageMissing):
                    await self._supply(address)
            else:
                rest = FIRST_REST
                if not first.done():
                    first.set_result(None)
                await visit.lost.wait()
                log.warning("%s does not answer: it is left out", visit.host.engine)
            await asyncio.sleep(rest)
            rest = min(2 * rest, LONGEST_REST)

    async def _visit(self, address: Address | None, up: asyncio.Future[Visit[H]]) -> None:
        """Hold a host open: until its engine is lost, and then until it is unused.

        Args:
            address: Where.
            up: Told when the host can be used, or why not.
        """
        try:
            async with self._open_host(address) as host:
                visit = Visit(host, (await host.engine.features()).cores)
                self._up[address] = visit
                self._changed.set()
                up.set_result(visit)
                log.info("%s answers", host.engine)
                try:
                    await visit.watch()
                finally:
                    self._up.pop(address)
                    host.engine.lost = True
                    visit.lost.set()
                await visit.end()
        except (ConfigError, SandboxError) as error:
            if up.done():
                log.warning("an engine was left with an error: %s", error)
            else:
                up.set_exception(error)

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
    """Raise what keeps the hosts from being used, given how each was found.

    Where one can be used, another one may be away, and gets an image that it lacks from that.
    """
    passing = (EngineMissing, ImageMissing) if None in ends else ()
    for end in ends:
        if end is not None and not isinstance(end, passing):
            raise end


async def check_hosts(profile: Profile, addresses: Sequence[Address | None]) -> None:
    """Make sure that containers with this profile can be made.

    Raises:
        ConfigError: No engine answers, or one of those that do cannot be used.
    """
    checks = (asyncio.to_thread(check_engine, profile, address) for address in addresses)
    ends = await asyncio.gather(*checks, return_exceptions=True)
    try:
        _insist(ends)
    except SandboxError as error:
        raise ConfigError(f"a container engine does not work: {error}") from error


async def answering(addresses: Sequence[Address | None]) -> Address | None:
    """Return the first address at which an engine answers; the last one is not asked.

    Raises:
        ConfigError: An engine that answers cannot be used.
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
