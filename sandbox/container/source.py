"""Where an environment's sandboxes come from, as its argument ``sandbox`` says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from vf.runtime.errors import ConfigError, SandboxError
from vf.runtime.suggest import did_you_mean
from vf.sandbox.contract import Limits, OpenSandbox, Sandbox

if TYPE_CHECKING:
    from vf.sandbox.container.profile import Profile
    from vf.sandbox.container.sandbox import DockerSandbox
    from vf.sandbox.pool import SandboxPool

_LIMITS = [field.name for field in fields(Limits)]
_PROFILE = ["image", "network", "runtime", "packages"]
_DOCKER = ["backend", *_PROFILE, "pool", "concurrency", *_LIMITS]
_LOCAL = ["backend", "unsafe_local"]


@runtime_checkable
class SandboxSource(Protocol):
    """Gives out fresh sandboxes."""

    def __hash__(self) -> int: ...

    def open(self) -> AbstractAsyncContextManager[Sandbox]:
        """Return a context that opens a sandbox which nobody has used, and destroys it.

        Raises:
            SandboxError: None can be had (from entering it).
        """
        ...

    async def check(self) -> None:
        """Look whether sandboxes can be had.

        Raises:
            ConfigError: They cannot; says how to mend it.
        """
        ...

    async def start(self) -> None:
        """Begin to make sandboxes ready in this event loop, without waiting for them."""
        ...


# A backend's name, a table of settings with the key `backend`, a source, or what opens sandboxes.
Sandboxes: TypeAlias = str | Mapping[str, Any] | SandboxSource | OpenSandbox


def sandbox_source(environment: str, sandbox: Sandboxes) -> SandboxSource:
    """Return the source that an environment's argument ``sandbox`` asks for.

    Args:
        environment: Its name, for the errors.
        sandbox: ``"docker"``; or a table with ``backend = "docker"`` and any of ``image``,
            ``network``, ``runtime``, ``packages`` (a list, from PyPI), ``pool`` (how many
            sandboxes to keep ready), ``concurrency`` (how many to make at a time) and the names of
            :class:`~vf.sandbox.contract.Limits`; or ``{backend = "local", unsafe_local = true}``,
            which runs code on this machine, unprotected; or a function that returns a context
            that opens one; or a source, which is returned.

    Raises:
        ConfigError: It is none of these; names the setting.
    """
    if not isinstance(sandbox, str | Mapping):
        try:
            return given_source(sandbox)
        except TypeError:
            raise ConfigError(
                f'{environment}: sandbox must be "docker" or a table of settings, got {sandbox!r}'
            ) from None
    settings = {"backend": sandbox} if isinstance(sandbox, str) else sandbox
    backend = settings.get("backend", "docker")
    if backend not in ("docker", "local"):
        hint = did_you_mean(str(backend), ["docker", "local"])
        raise ConfigError(
            f'{environment}: there is no sandbox {backend!r}.{hint} It must be "docker", or '
            '{backend = "local", unsafe_local = true}'
        )
    known = _DOCKER if backend == "docker" else _LOCAL
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"{environment}: the {backend} sandbox has no setting {name!r}.{hint} "
                f"It takes: {', '.join(known)}"
            )
    if backend == "docker":
        return _docker(environment, settings)
    if settings.get("unsafe_local") is not True:
        raise ConfigError(
            f"{environment}: a local sandbox runs the model's code on this machine, unprotected. "
            'For trusted tests only: sandbox = {backend = "local", unsafe_local = true}'
        )
    return _Local()


def given_source(sandbox: SandboxSource | OpenSandbox) -> SandboxSource:
    """Return a source, or make one of what opens sandboxes; equal ones of the same function.

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

    def open(self) -> AbstractAsyncContextManager[Sandbox]:
        """Call it."""
        return self.function()

    async def check(self) -> None:
        """Whoever made the function has seen to it."""

    async def start(self) -> None:
        """There is nothing to make ready."""


class _Local:
    """Processes of this machine: no protection at all."""

    def open(self) -> AbstractAsyncContextManager[Sandbox]:
        """Return a context that opens one."""
        from vf.sandbox.local import UnsafeLocalSandbox

        return UnsafeLocalSandbox(unsafe_local=True)

    async def check(self) -> None:
        """There is nothing that could be missing."""

    async def start(self) -> None:
        """There is nothing to make ready."""


class DockerSource:
    """Containers from a pool, which is opened at the first use in an event loop.

    The loop's end closes it: asyncio cancels what still runs then, and waits for it.

    Args:
        profile: How containers are made.
        size: How many to keep ready.
        concurrency: How many to make at a time.
    """

    def __init__(self, profile: Profile, size: int, concurrency: int) -> None:
        self.profile, self.size, self.concurrency = profile, size, concurrency
        self._pools: dict[
            asyncio.AbstractEventLoop,
            tuple[asyncio.Task[None], asyncio.Future[SandboxPool[DockerSandbox]]],
        ] = {}

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Sandbox]:
        """Take a sandbox from the pool; it is destroyed on the way out.

        Raises:
            SandboxError: None could be made, or none in time.
            ConfigError: None can ever be made; says how to mend it.
        """
        pool = await asyncio.shield(self._pool())
        async with pool.acquire() as sandbox:
            yield sandbox

    async def check(self) -> None:
        """Ask the engine.

        Raises:
            ConfigError: There is none, or it lacks something; says how to mend it.
        """
        from vf.sandbox.container.doctor import check_engine

        try:
            await asyncio.to_thread(check_engine, self.profile)
        except SandboxError as error:
            raise ConfigError(f"the container engine does not work: {error}") from error

    async def start(self) -> None:
        """Open the pool: it fills while the model thinks."""
        self._pool()

    def _pool(self) -> asyncio.Future[SandboxPool[DockerSandbox]]:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            ready: asyncio.Future[SandboxPool[DockerSandbox]] = loop.create_future()
            # Somebody may be there to see it fail, or not: either is fine.
            ready.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._pools[loop] = loop.create_task(self._keep(ready)), ready
        return self._pools[loop][1]

    async def _keep(self, ready: asyncio.Future[SandboxPool[DockerSandbox]]) -> None:
        """Hold the pool open until this is cancelled."""
        from vf.sandbox.container.opening import open_pool

        try:
            async with open_pool(
                self.profile, size=self.size, concurrency=self.concurrency
            ) as pool:
                ready.set_result(pool)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._pools.pop(asyncio.get_running_loop(), None)
            ready.cancel()


def _docker(environment: str, settings: Mapping[str, Any]) -> DockerSource:
    from vf.sandbox.container.profile import Profile

    counts = {name: settings.get(name, 4) for name in ("pool", "concurrency")}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"{environment}: sandbox.{name} must be a whole number, at least 1, got {count!r}"
            )
    for name in settings.keys() & set(_LIMITS):
        limit = settings[name]
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            raise ConfigError(f"{environment}: sandbox.{name} must be a number, got {limit!r}")
    for name in settings.keys() & {"image", "network", "runtime"}:
        if not isinstance(settings[name], str) or not settings[name]:
            raise ConfigError(
                f"{environment}: sandbox.{name} must be a name, got {settings[name]!r}"
            )
    packages = settings.get("packages", [])
    if not isinstance(packages, list) or not all(isinstance(p, str) for p in packages):
        raise ConfigError(
            f"{environment}: sandbox.packages must be a list of names, got {packages!r}"
        )
    try:
        limits = Limits(**{name: settings[name] for name in _LIMITS if name in settings})
        options = {name: settings[name] for name in _PROFILE if name in settings}
        profile = Profile(limits=limits, **options)
    except ValueError as error:
        raise ConfigError(f"{environment}: sandbox: {error}") from error
    return DockerSource(profile, counts["pool"], counts["concurrency"])
