"""An episode's side services: started in their order, and destroyed with the episode."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError, SandboxError, did_you_mean
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.joined import Joined, Mount
from vf.sandbox.container.profile import OVERHEAD, SHM, Profile
from vf.sandbox.contract import Limits, Sandbox
from vf.sandbox.services.compose import IDLE, Compose, read_compose
from vf.sandbox.services.network import Network, open_network
from vf.sandbox.services.service import Service
from vf.sandbox.services.service_spec import Health, ServiceSpec
from vf.sandbox.spec import Build

# What a service may use where its file says nothing.
LIMITS = Limits(memory=512 * 2**20, cpus=1.0, pids=256)
SUPERVISOR_PIDS = 16  # of a service's container, on top of what its file allows
START_TIMEOUT = 300.0  # seconds until all services must work
NANO = 1e9

FindImage = Callable[[Build | str], Awaitable[str]]


@dataclass(slots=True)
class Services:
    """The services of an episode that is open.

    Attributes:
        compose: What the file says.
        network: The episode's network.
        addresses: Where each service is in it, by its name.
        image: The image of the main service.
    """

    compose: Compose
    network: Network
    addresses: Mapping[str, str]
    image: str
    _engine: Engine
    _running: dict[str, Service]

    def main_profile(self, base: Profile) -> Profile:
        """Return how the sandbox is made: the main service's container.

        Args:
            base: What holds where the file says nothing; its variables come before the file's.

        Raises:
            ConfigError: The file's numbers do not fit together.
        """
        spec = self.compose.main
        return _profile(spec, self.image, base, self._join(spec, ()))

    async def start_main(self, sandbox: Sandbox) -> None:
        """Do in the sandbox what the file says of the main service: files, a program, health.

        Raises:
            SandboxError: The program has ended already, or is not healthy in time.
            OSError: A file does not fit, say.
        """
        spec = self.compose.main
        config = await _config(self._engine, self.image)
        said = (spec.entrypoint or ()) + (spec.command or ())
        # The image's own program is not run: the sandbox is there for what the episode runs in it.
        command = _command(self.compose, spec, config) if said and said not in IDLE else ()
        service = Service(spec, sandbox, command, _health(spec, config))
        self._running[spec.name] = service
        await service.start()
        await service.healthy()

    def service(self, name: str) -> Service:
        """Return a service by its name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self._running:
            hint = did_you_mean(name, list(self._running))
            raise ConfigError(f"{self.compose.path} has no service {name!r} that runs.{hint}")
        return self._running[name]

    def logs(self) -> dict[str, str]:
        """Return the end of what every service has written, by its name."""
        return {name: service.log for name, service in self._running.items()}

    def _join(self, spec: ServiceSpec, capabilities: tuple[str, ...]) -> Joined:
        volumes = self.network.volumes
        shared = (Mount(at, volumes[name], read_only=ro) for name, at, ro in spec.volumes)
        own = (Mount(at) if size is None else Mount(at, size=size) for at, size in spec.tmpfs)
        others = (self.compose.main, *self.compose.sides)
        return Joined(
            network=self.network.name,
            address=self.addresses[spec.name],
            hosts=tuple(
                (name, self.addresses[each.name]) for each in others for name in each.aliases
            ),
            hostname=spec.hostname,
            mounts=(*shared, *own),
            shm=spec.shm,
            capabilities=capabilities,
        )


@contextlib.asynccontextmanager
async def open_services(
    engine: Engine,
    path: Path,
    *,
    image: FindImage,
    variables: Mapping[str, str] | None = None,
    main: str = "main",
    lifetime: float = LIMITS.lifetime,
    timeout: float = START_TIMEOUT,
) -> AsyncIterator[Services]:
    """Start the side services of a Compose file, in a network of their own with no way out.

    Args:
        engine: Where.
        path: The file; see :func:`~vf.sandbox.services.compose.read_compose`.
        image: Returns the name of an image on the engine, built or pulled if need be.
        variables: Values of the variables in the file.
        main: The service that is the sandbox itself; the caller makes it, from
            :meth:`Services.main_profile`, and then calls :meth:`Services.start_main`.
        lifetime: Seconds until the services end by themselves.
        timeout: Seconds until all of them must work.

    Yields:
        The services, once each is started, healthy, or completed. They are destroyed on the way
        out.

    Raises:
        ConfigError: The file says what is not done here, or a service cannot be made so.
        SandboxError: A service has failed before the episode has begun, or the engine has.
    """
    compose = await asyncio.to_thread(read_compose, path, variables, main=main)
    async with contextlib.AsyncExitStack() as stack:
        made = open_network(engine, compose.volumes, lifetime=lifetime)
        network = await stack.enter_async_context(made)
        names = [spec.name for spec in (compose.main, *compose.sides)]
        addresses = dict(zip(names, network.addresses(), strict=False))
        main_image = await image(compose.main.build or compose.main.image or "")
        services = Services(compose, network, addresses, main_image, engine, {})
        try:
            async with asyncio.timeout(timeout):
                for spec in compose.sides:
                    await _await_those_before(services, spec)
                    found = await image(spec.build or spec.image or "")
                    service = await _make(services, engine, spec, found, lifetime, stack)
                    services._running[spec.name] = service
                    await service.start()
                await _await_those_before(services, compose.main)
                for service in services._running.values():
                    service.check()
                    if service.ended is None:
                        await service.healthy()
        except TimeoutError:
            logs = "; ".join(f"{name}: {text[-500:]}" for name, text in services.logs().items())
            raise SandboxError(
                f"the services of {path} do not work after {timeout:g} s; they wrote: {logs}"
            ) from None
        except OSError as error:
            raise SandboxError(f"a service of {path} cannot be started: {error}") from error
        yield services


async def _await_those_before(services: Services, spec: ServiceSpec) -> None:
    """Wait for what a service depends on."""
    for name, condition in spec.after:
        service = services._running[name]
        if condition == "service_healthy":
            await service.healthy()
        elif condition == "service_completed_successfully":
            await service.completed()


async def _make(
    services: Services,
    engine: Engine,
    spec: ServiceSpec,
    image: str,
    lifetime: float,
    stack: contextlib.AsyncExitStack,
) -> Service:
    """Make a side service's container."""
    config = await _config(engine, image)
    joined = services._join(spec, spec.capabilities)
    covered = {each.target for each in joined.mounts}
    anonymous = (Mount(at) for at in config.get("Volumes") or {} if at not in covered)
    joined = replace(joined, mounts=(*joined.mounts, *anonymous))
    base = Profile(limits=replace(LIMITS, lifetime=lifetime))
    profile = _profile(spec, image, base, joined)
    profile = await asyncio.to_thread(prepare, engine, profile)
    sandbox = await DockerSandbox.create(engine, profile)
    await stack.enter_async_context(sandbox)
    service = Service(
        spec, sandbox, _command(services.compose, spec, config), _health(spec, config)
    )
    stack.push_async_callback(service.close)
    return service


def _profile(spec: ServiceSpec, image: str, base: Profile, joined: Joined) -> Profile:
    limits, shm = base.limits, spec.shm or SHM
    try:
        return replace(
            base,
            image=image,
            packages=(),
            limits=replace(
                limits,
                memory=(spec.memory or limits.memory) + OVERHEAD + shm + limits.tmp,
                cpus=spec.cpus or limits.cpus,
                pids=(spec.pids or limits.pids) + SUPERVISOR_PIDS,
            ),
            writable=not spec.read_only,
            user=base.user if spec.user is None else spec.user,
            workdir=base.workdir if spec.workdir is None else spec.workdir,
            env={**dict(spec.env), **dict(base.env)},
            entry=None,
            joined=joined,
        )
    except ValueError as error:
        raise ConfigError(f"services.{spec.name}: {error}") from error


async def _config(engine: Engine, image: str) -> dict[str, Any]:
    found: dict[str, Any] = (await engine.call("inspect_image", image)).get("Config") or {}
    return found


def _command(compose: Compose, spec: ServiceSpec, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a side service runs."""
    entrypoint, command = spec.entrypoint, spec.command
    if entrypoint is None:
        entrypoint = tuple(config.get("Entrypoint") or ())
        if command is None:
            command = tuple(config.get("Cmd") or ())
    if not (found := (*entrypoint, *(command or ()))):
        raise ConfigError(
            f"{compose.path}: services.{spec.name}.command: there is none, and its image has none"
        )
    return found


def _health(spec: ServiceSpec, config: Mapping[str, Any]) -> Health | None:
    """Return how a service shows that it works: as the file says, or its image."""
    if spec.health is not None or spec.healthless:
        return spec.health
    found = config.get("Healthcheck") or {}
    kind, *words = found.get("Test") or ["NONE"]
    if kind not in ("CMD", "CMD-SHELL"):
        return None

    def seconds(key: str, default: float) -> float:
        return (found.get(key) or 0) / NANO or default

    return Health(
        tuple(words) if kind == "CMD" else " ".join(words),
        seconds("Interval", 30.0),
        seconds("Timeout", 30.0),
        found.get("Retries") or 3,
        seconds("StartPeriod", 0.0),
    )
