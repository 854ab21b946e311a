"""Bubblewrap's sandboxes of this machine, as a source."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from vf.runtime.errors import ConfigError
from vf.runtime.open_files import sandboxes
from vf.runtime.share import own_share
from vf.sandbox.bounds import Bounds
from vf.sandbox.bubblewrap.bubblewrap_sandbox import WORKSPACE, BubblewrapSandbox, NamespaceProfile
from vf.sandbox.bubblewrap.system import checked_system
from vf.sandbox.contract import Limits, Sandbox
from vf.sandbox.hosting import values
from vf.sandbox.hosting.choice import or_an_engine
from vf.sandbox.hosting.values import LIMITS
from vf.sandbox.pool import Opened, Progress, SandboxPool
from vf.sandbox.services.allow import AllowList
from vf.sandbox.services.proxy import PROXY_PORT, Proxy
from vf.sandbox.source import refuse_spec
from vf.sandbox.spec import SandboxSpec, whole
from vf.sandbox.stats import HostStats, ImageStats, PoolStats

BUBBLEWRAP = [
    "backend",
    "allow",
    "env",
    "workdir",
    "pool",
    "concurrency",
    "max_containers",
    *LIMITS,
]
# Fields of a spec that name an image of a task's own, or change it.
IMAGES = ("image", "build", "compose", "writable", "user")
NO_IMAGES = (
    "bubblewrap has no images: it shows code this machine's own programs. Such tasks need a "
    "container engine"
)
_keeping: set[asyncio.Task[None]] = set()  # a loop's own references are weak


@dataclass(frozen=True, slots=True)
class BubblewrapSettings:
    """The settings of bubblewrap's sandboxes.

    Attributes:
        spec: The spec of tasks without one.
        bounds: The limits on all sandboxes together.
    """

    spec: SandboxSpec
    bounds: Bounds


def bubblewrap_settings(settings: Mapping[str, Any]) -> BubblewrapSettings:
    """Check settings, whose names are those of :data:`BUBBLEWRAP`.

    Raises:
        ConfigError: If a value is invalid; names the setting.
    """
    values.require_counts(settings, "pool", "concurrency", "max_containers")
    values.require(settings, values.number, "a number", *LIMITS)
    values.require(settings, values.name, "a path", "workdir")
    values.require(settings, values.texts, 'a table of texts, { NAME = "value" }', "env")
    values.require(settings, values.names, "a list of hosts", "allow")

    def given(names: Iterable[str]) -> dict[str, Any]:
        return {name: settings[name] for name in names if name in settings}

    try:
        limits = Limits(**given(LIMITS))
        spec = SandboxSpec(limits=limits, **given(("workdir", "env", "allow")))
        profile_of(spec)
    except ConfigError as error:
        raise ConfigError(str(error).replace("sandbox_spec", "sandbox", 1)) from error
    except ValueError as error:
        raise ConfigError(f"sandbox: {error}") from error
    names = [field.name for field in fields(Bounds)]
    return BubblewrapSettings(spec, Bounds(**given(names)))


def profile_of(spec: SandboxSpec) -> NamespaceProfile:
    """Return the settings of a spec's sandbox.

    Raises:
        ConfigError: If it needs a container engine; names the field.
        ValueError: If its values do not fit together.
    """
    # The root is read-only in any case.
    refuse_spec(replace(spec, writable=spec.writable or None), NO_IMAGES, IMAGES)
    try:
        AllowList(spec.allow)
    except ConfigError as error:  # it begins with the field's name
        raise ConfigError(f"sandbox_spec.{error}") from error
    env = dict(spec.env)
    if spec.allow:
        env = Proxy.environ(PROXY_PORT) | env
    return NamespaceProfile(spec.limits or Limits(), spec.workdir or WORKSPACE, env)


class BubblewrapSource:
    """Sandboxes of namespaces on this machine; those of the settings' own spec are kept ready.

    Args:
        settings: The default spec, and the limits on all sandboxes together.
    """

    backend = "bubblewrap"

    def __init__(self, settings: BubblewrapSettings) -> None:
        self.settings = settings
        self._pools: dict[asyncio.AbstractEventLoop, _Pools] = {}

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Take an unused sandbox; it is destroyed on the way out.

        Raises:
            ConfigError: If none can be made; says how to fix it.
            SandboxError: If none could be made in time.
        """
        self.check_spec(spec)
        async with self._here().pool(whole(spec, self.settings.spec)).acquire() as opened:
            yield opened.sandbox

    @contextlib.asynccontextmanager
    async def open_alone(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Make one sandbox, without pools; it ends on the way out.

        Raises:
            ConfigError: If none can be made; says how to fix it.
            SandboxError: If it did not start.
        """
        self.check_spec(spec)
        opened = await _open_one(whole(spec, self.settings.spec), warm=False)
        try:
            yield opened.sandbox
        finally:
            await opened.close()

    @property
    def max_containers(self) -> int | None:
        """Sandboxes that it may have at once; None for no bound."""
        return self.settings.bounds.max_containers

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Check that sandboxes can be made from a spec.

        Raises:
            ConfigError: If they cannot be made; names the field.
        """
        with or_an_engine():
            try:
                profile_of(whole(spec, self.settings.spec))
            except ValueError as error:
                raise ConfigError(f"sandbox_spec: {error}") from error

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Check them: there is nothing to fetch."""
        for spec in specs:
            self.check_spec(spec)

    async def check(self) -> None:
        """Check that sandboxes can be made on this machine.

        Raises:
            ConfigError: If none can be made here; says how to fix it.
        """
        with or_an_engine():
            await checked_system()

    async def start(self) -> None:
        """Fill the pool of the settings' own spec while the model samples."""
        self._here().pool(self.settings.spec).fill()

    def stats(self) -> Sequence[HostStats]:
        """Return the counts of sandboxes, for each event loop that uses it."""
        return [pools.stats() for pools in self._pools.copy().values()]

    def _here(self) -> _Pools:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = _Pools(self.settings)
            task = loop.create_task(self._keep(self._pools[loop]))
            _keeping.add(task)
            task.add_done_callback(_keeping.discard)
        return self._pools[loop]

    async def _keep(self, pools: _Pools) -> None:
        """Close the pools when this is cancelled, as asyncio does at the loop's end."""
        try:
            await asyncio.Event().wait()
        finally:
            self._pools.pop(asyncio.get_running_loop(), None)
            await pools.close()


class _Pools:
    """A pool for each spec, and a limit on all of them together."""

    def __init__(self, settings: BubblewrapSettings) -> None:
        self._own = settings.spec
        self._bounds = settings.bounds.divided(own_share(), sandboxes())
        self._pools: dict[SandboxSpec, SandboxPool[Opened[BubblewrapSandbox]]] = {}
        self._most = self._bounds.max_containers or sandboxes()
        self._lifetime = 0.0  # the longest of all, seconds
        self._progress = Progress(self._held_up)

    def pool(self, spec: SandboxSpec) -> SandboxPool[Opened[BubblewrapSandbox]]:
        """Return the pool of a spec; only that of the settings keeps sandboxes ready."""
        if spec not in self._pools:
            lifetime = (spec.limits or Limits()).lifetime
            self._lifetime = max(self._lifetime, lifetime)
            self._pools[spec] = SandboxPool(
                lambda: _open_one(spec, warm=True),
                self._bounds.pool if spec == self._own else 0,
                concurrency=self._bounds.concurrency,
                max_age=lifetime / 2,
                room=self._room,
                changed=self._fill,
                progress=self._progress,
            )
            self._pools[spec].open()
        return self._pools[spec]

    def stats(self) -> HostStats:
        """Return the current counts of sandboxes."""
        specs = {spec: pool.stats() for spec, pool in self._pools.copy().items()}
        return HostStats(PoolStats.sum(specs.values()), specs, ImageStats())

    async def close(self) -> None:
        """Destroy every sandbox."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    def _fill(self) -> None:
        """Make missing sandboxes, first for waiting callers; at the limit, destroy a ready one."""
        pools = list(self._pools.values())
        for pool in pools:
            pool.fill(spare=False)
        if self._room() > 0:
            for pool in pools:
                pool.fill()
        elif any(pool.stats().waiting for pool in pools):
            idle = [pool for pool in pools if (held := pool.stats()).ready > held.waiting]
            if idle:
                idle[0].drop_one()

    def _room(self) -> int:
        return self._most - sum(pool.stats().held for pool in self._pools.values())

    def _held_up(self) -> float:
        """Return the seconds for which there may be no room: until sandboxes in use end."""
        return 0.0 if self._room() > 0 else self._lifetime


async def _open_one(spec: SandboxSpec, *, warm: bool) -> Opened[BubblewrapSandbox]:
    async with contextlib.AsyncExitStack() as stack:
        with or_an_engine():
            sandbox = await BubblewrapSandbox.create(profile_of(spec), warm=warm)
        stack.push_async_callback(sandbox.close)
        if spec.allow:
            proxy = await stack.enter_async_context(Proxy(spec.allow))
            await sandbox.forward(proxy.address, port=PROXY_PORT)
        return Opened(sandbox, stack.pop_all())
