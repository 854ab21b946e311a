"""Containers of one engine or several, as a source of sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence

from vf.runtime.errors import SandboxError
from vf.runtime.open_files import sandboxes
from vf.runtime.share import own_share
from vf.sandbox.container.address import Address
from vf.sandbox.contract import Sandbox
from vf.sandbox.hosting.host import Host, open_host
from vf.sandbox.hosting.hosts import Hosts, answering, check_hosts
from vf.sandbox.hosting.settings import DockerSettings
from vf.sandbox.hosting.spec_images import check_spec
from vf.sandbox.spec import SandboxSpec, whole
from vf.sandbox.stats import HostStats

_keeping: set[asyncio.Task[None]] = set()  # a loop's own references are weak


class DockerSource:
    """Containers of one engine or several, connected at the first use in an event loop.

    The loop's end closes everything: asyncio then cancels what still runs, and waits for it.

    Args:
        settings: The containers' settings, and the limits on all of them together.
    """

    backend = "docker"

    def __init__(self, settings: DockerSettings) -> None:
        self.settings = settings
        self._checked: set[SandboxSpec] = set()
        self._started = False
        self._hosts: dict[
            asyncio.AbstractEventLoop, tuple[asyncio.Task[None], asyncio.Future[Hosts[Host]]]
        ] = {}

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Take a sandbox from the pool of its spec; it is destroyed on the way out.

        Raises:
            SandboxError: If none could be created in time, or its image cannot be built or pulled.
            ConfigError: If none can be created; says how to fix it.
        """
        self.check_spec(spec)
        hosts = await asyncio.shield(self._all())
        async with hosts.open(spec) as sandbox:
            yield sandbox

    @contextlib.asynccontextmanager
    async def open_alone(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Make one sandbox, without pools; it and the engine's connection end on the way out.

        Raises:
            SandboxError: If it could not be created, or its image cannot be built or pulled.
            ConfigError: If it cannot be created; says how to fix it.
        """
        self.check_spec(spec)
        address = await answering(self.settings.hosts)
        async with self.open_host(address) as host, host.open(spec) as sandbox:
            yield sandbox

    @property
    def max_containers(self) -> int | None:
        """Containers that it may have at once on one engine; None for no bound."""
        return self.settings.bounds.max_containers

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Check that containers can be made from a spec.

        Raises:
            ConfigError: If they cannot be made; names the field.
        """
        if spec is not None and spec not in self._checked:
            check_spec(whole(spec, self.settings.spec), self.settings.profile)
            self._checked.add(spec)

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Build or pull images, and return when all are there or have failed.

        Raises:
            ConfigError: If containers cannot be made from one; names the field.
        """
        counts = Counter(specs)
        for spec in counts:
            self.check_spec(spec)
        hosts = await asyncio.shield(self._all())
        await asyncio.gather(
            *(_ignore_failure(hosts.prefetch(spec, count)) for spec, count in counts.items())
        )

    async def check(self) -> None:
        """Check the container engines.

        Raises:
            ConfigError: If one of them lacks something, or none responds; says how to fix it.
        """
        made = self.settings
        await check_hosts(made.profile, made.hosts)

    async def start(self) -> None:
        """Fill the pool of the settings' own spec while the model samples."""
        self._started = True
        ready = self._all()
        if ready.done() and not _failed(ready):
            for host in ready.result().hosts:
                host.start()

    def stats(self) -> Sequence[HostStats]:
        """Return the counts of its hosts, for each event loop that uses it."""
        opened = [ready for _, ready in self._hosts.copy().values()]
        done = [ready.result() for ready in opened if ready.done() and not _failed(ready)]
        return [host.stats() for hosts in done for host in hosts.hosts]

    def _all(self) -> asyncio.Future[Hosts[Host]]:
        loop = asyncio.get_running_loop()
        if loop not in self._hosts:
            ready: asyncio.Future[Hosts[Host]] = loop.create_future()
            # A failure may go unobserved: retrieve it, so that asyncio does not log it.
            ready.add_done_callback(_failed)
            task = loop.create_task(self._keep(ready))
            _keeping.add(task)
            task.add_done_callback(_keeping.discard)
            self._hosts[loop] = task, ready
        return self._hosts[loop][1]

    @contextlib.asynccontextmanager
    async def open_host(self, address: Address | None = None) -> AsyncIterator[Host]:
        """Connect to the engine, and remove everything made there on the way out."""
        made = self.settings
        bounds = made.bounds.divided(own_share(), max(1, sandboxes() // len(made.hosts)))
        async with open_host(made.profile, made.spec, bounds, address) as host:
            if self._started:
                host.start()
            yield host

    async def _keep(self, ready: asyncio.Future[Hosts[Host]]) -> None:
        """Hold the hosts open until this is cancelled."""
        made, first = self.settings, own_share().index % len(self.settings.hosts)
        addresses = [*made.hosts[first:], *made.hosts[:first]]  # workers begin with different ones
        try:
            async with Hosts(addresses, self.open_host, images=[made.profile.image]) as hosts:
                ready.set_result(hosts)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._hosts.pop(asyncio.get_running_loop(), None)
            ready.cancel()


def _failed(done: asyncio.Future[Hosts[Host]]) -> bool:
    return done.cancelled() or done.exception() is not None


async def _ignore_failure(fetching: Awaitable[None]) -> None:
    """Wait for it; a failure is raised again when the sandbox is opened."""
    with contextlib.suppress(SandboxError):
        await fetching
