"""Where sandboxes come from: the settings of an environment's argument ``sandbox``."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias, runtime_checkable

from vf.runtime.errors import ConfigError, SandboxError, did_you_mean
from vf.runtime.open_files import sandboxes
from vf.runtime.share import own_share
from vf.sandbox.container.address import Address
from vf.sandbox.contract import OpenSandbox, Sandbox
from vf.sandbox.hosting.host import Host, HostStats, open_host
from vf.sandbox.hosting.hosts import Hosts, answering, check_hosts
from vf.sandbox.hosting.settings import DOCKER, DockerSettings, docker_settings
from vf.sandbox.hosting.wanted import check_spec, whole
from vf.sandbox.spec import SandboxSpec

_LOCAL = ["backend", "unsafe_local"]


@runtime_checkable
class SandboxSource(Protocol):
    """Creates sandboxes, one per episode."""

    def __hash__(self) -> int: ...

    def open(self, spec: SandboxSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Return a context that opens a new sandbox and destroys it at the end.

        Args:
            spec: What it is made from; None for the source's own settings.

        Raises:
            ConfigError: The source cannot make such a sandbox; see :meth:`check_spec`.
            SandboxError: None can be created (raised on entering).
        """
        ...

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Check that the source can make sandboxes from a spec.

        Raises:
            ConfigError: It cannot; names the field.
        """
        ...

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Build or pull the images of specs, and return when all are there or have failed.

        What fails here fails again when a sandbox is opened, and is reported there.

        Args:
            specs: In the order in which sandboxes will be opened. Equal ones may repeat: what
                comes often is kept ready.

        Raises:
            ConfigError: The source cannot make such a sandbox; see :meth:`check_spec`.
        """
        ...

    async def check(self) -> None:
        """Check that sandboxes can be created.

        Raises:
            ConfigError: They cannot; says how to fix it.
        """
        ...

    async def start(self) -> None:
        """Start to prepare sandboxes in this event loop, without waiting for them."""
        ...

    def stats(self) -> Sequence[HostStats]:
        """Return what is being made, by engine, where that is known. For any thread."""
        ...


# A backend's name, a table of settings, a source, or a function that opens a sandbox.
Sandboxes: TypeAlias = str | Mapping[str, Any] | SandboxSource | OpenSandbox


def sandbox_source(sandbox: Sandboxes) -> SandboxSource:
    """Return a source of sandboxes from settings, as an environment's argument ``sandbox`` gives.

    Args:
        sandbox: ``"docker"``; or a table with ``backend = "docker"`` and any of ``image``,
            ``build``, ``compose``, ``network``, ``allow``, ``runtime``, ``packages`` (a list, from
            PyPI), ``writable``, ``user``, ``workdir``, ``env``, and the fields of
            :class:`~vf.sandbox.hosting.host.Bounds` and :class:`~vf.sandbox.contract.Limits`; or
            ``{backend = "local", unsafe_local = true}``, which runs code on this machine,
            unprotected; or a function that returns a context that opens one; or a source, which
            is returned unchanged.

    Raises:
        ConfigError: It is none of these, or a setting is wrong; names the setting.
    """
    if not isinstance(sandbox, str | Mapping):
        try:
            return given_source(sandbox)
        except TypeError:
            raise ConfigError(
                f'sandbox must be "docker" or a table of settings, got {sandbox!r}'
            ) from None
    settings = {"backend": sandbox} if isinstance(sandbox, str) else sandbox
    backend = settings.get("backend", "docker")
    if backend not in ("docker", "local"):
        hint = did_you_mean(str(backend), ["docker", "local"])
        raise ConfigError(
            f'there is no sandbox {backend!r}.{hint} It must be "docker", or '
            '{backend = "local", unsafe_local = true}'
        )
    known = DOCKER if backend == "docker" else _LOCAL
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"the {backend} sandbox has no setting {name!r}.{hint} It takes: {', '.join(known)}"
            )
    if backend == "docker":
        return DockerSource(docker_settings(settings))
    if settings.get("unsafe_local") is not True:
        raise ConfigError(
            "a local sandbox runs the model's code on this machine, unprotected. "
            'For trusted tests only: sandbox = {backend = "local", unsafe_local = true}'
        )
    return _Local()


@contextlib.asynccontextmanager
async def open_sandbox(
    sandbox: Sandboxes = "docker", spec: SandboxSpec | None = None
) -> AsyncIterator[Sandbox]:
    """Open one sandbox, and destroy it on the way out.

    Example::

        async with vf.open_sandbox("docker") as box:
            result = await box.python("1 + 1")

    Args:
        sandbox: The settings that :func:`sandbox_source` takes. ``pool`` and ``concurrency`` have
            no effect on a single sandbox.
        spec: What it is made from beyond that.

    Raises:
        ConfigError: A setting is wrong, or the container engine is missing something.
        SandboxError: The engine failed, or the image cannot be built or pulled.
    """
    source = sandbox_source(sandbox)
    if not isinstance(source, DockerSource):
        async with source.open(spec) as box:
            yield box
        return
    source.check_spec(spec)
    where = await answering(source.settings.hosts)
    async with source.open_host(where) as host, host.open(spec) as box:
        yield box


def given_source(sandbox: SandboxSource | OpenSandbox) -> SandboxSource:
    """Return a source, or make one from a function; the same function gives equal sources.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(sandbox, SandboxSource):
        return sandbox
    if not callable(sandbox):
        raise TypeError(f"{sandbox!r} opens no sandboxes")
    return _Given(sandbox)


@dataclass(frozen=True)
class _Given:
    """Sandboxes from the caller's own function."""

    function: OpenSandbox

    def open(self, spec: SandboxSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Call it."""
        self.check_spec(spec)
        return self.function()

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Take none: a function opens the sandboxes that it opens."""
        _refuse(spec, "a function that opens sandboxes takes no spec")

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Check them: there is nothing to fetch."""
        for spec in specs:
            self.check_spec(spec)

    async def check(self) -> None:
        """Nothing to check: the function belongs to the caller."""

    async def start(self) -> None:
        """Nothing to prepare."""

    def stats(self) -> Sequence[HostStats]:
        """Nothing is known."""
        return ()


class _Local:
    """Processes of this machine: no protection at all."""

    def open(self, spec: SandboxSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Return a context that opens one."""
        from vf.sandbox.local import UnsafeLocalSandbox

        self.check_spec(spec)
        return UnsafeLocalSandbox(unsafe_local=True)

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Take none: processes of this machine see this machine."""
        _refuse(spec, 'backend = "local" runs on this machine as it is')

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Check them: there is nothing to fetch."""
        for spec in specs:
            self.check_spec(spec)

    async def check(self) -> None:
        """Nothing can be missing."""

    async def start(self) -> None:
        """Nothing to prepare."""

    def stats(self) -> Sequence[HostStats]:
        """Nothing is known."""
        return ()


_keeping: set[asyncio.Task[None]] = set()  # a loop's own references are weak


class DockerSource:
    """Containers of one engine or several, which are connected to at the first use in a loop.

    The loop's end closes all of it: asyncio then cancels what still runs, and waits for it.

    Args:
        settings: How containers are made, and the bounds that they keep to.
    """

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
            SandboxError: None could be created in time, or its image cannot be built or pulled.
            ConfigError: None can be created; says how to fix it.
        """
        self.check_spec(spec)
        hosts = await asyncio.shield(self._all())
        async with hosts.open(spec) as sandbox:
            yield sandbox

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Check that containers can be made from a spec.

        Raises:
            ConfigError: They cannot; names the field.
        """
        if spec is not None and spec not in self._checked:
            check_spec(whole(spec, self.settings.spec), self.settings.profile)
            self._checked.add(spec)

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Build or pull images, and return when all are there or have failed.

        Raises:
            ConfigError: Containers cannot be made from one; names the field.
        """
        wanted = Counter(specs)
        for spec in wanted:
            self.check_spec(spec)
        hosts = await asyncio.shield(self._all())
        await asyncio.gather(
            *(_tried(hosts.prefetch(spec, count)) for spec, count in wanted.items())
        )

    async def check(self) -> None:
        """Check the container engines.

        Raises:
            ConfigError: One of them lacks something, or none answers; says how to fix it.
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
        """Return what its hosts are doing: all of each event loop that uses it."""
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
        """Connect to the engine, and close all that was made there on the way out."""
        made = self.settings
        bounds = made.bounds.divided(own_share(), max(1, sandboxes() // len(made.hosts)))
        async with open_host(made.profile, made.spec, bounds, address) as host:
            if self._started:
                host.start()
            yield host

    async def _keep(self, ready: asyncio.Future[Hosts[Host]]) -> None:
        """Hold the hosts open until this is cancelled."""
        made, first = self.settings, own_share().index % len(self.settings.hosts)
        where = [*made.hosts[first:], *made.hosts[:first]]  # workers begin with different ones
        try:
            async with Hosts(where, self.open_host, images=[made.profile.image]) as hosts:
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


async def _tried(fetching: Awaitable[None]) -> None:
    """Wait for it, and leave its failure to who opens the sandbox."""
    with contextlib.suppress(SandboxError):
        await fetching


def _refuse(spec: SandboxSpec | None, why: str) -> None:
    """Refuse any spec that asks for something.

    Raises:
        ConfigError: It does; names the first field that is set.
    """
    nothing = SandboxSpec()
    for field in fields(SandboxSpec):
        value = getattr(spec or nothing, field.name)
        if value != getattr(nothing, field.name):
            raise ConfigError(
                f"the task's sandbox_spec has {field.name} = {value!r}, but {why}; "
                'write sandbox = "docker"'
            )
