"""An episode's side services: started in their order, and destroyed with the episode."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from vf.runtime.errors import ConfigError, SandboxError, did_you_mean
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.joined import Joined
from vf.sandbox.contract import Limits, Sandbox
from vf.sandbox.services.compose import Compose, read_compose
from vf.sandbox.services.containers import (
    command_of,
    command_of_main,
    health_of,
    mounts_of,
    profile_of,
)
from vf.sandbox.services.network import Network, open_network
from vf.sandbox.services.service import Service
from vf.sandbox.services.service_spec import ServiceSpec
from vf.sandbox.spec import Build

# The limits of a side service without limits in the file.
LIMITS = Limits(memory=768 * 2**20, cpus=1.0, pids=256)
ROOT = "0:0"
START_TIMEOUT = 300.0  # seconds until all services must work
ERROR_OUTPUT = 500  # characters of each service's output, in an error

T = TypeVar("T")


# The contract of a sandbox has no services: they are kept here.
_beside: WeakKeyDictionary[Sandbox, Services] = WeakKeyDictionary()


@dataclass(slots=True)
class Services:
    """The services of an episode that is open.

    Attributes:
        compose: The content of the Compose file.
        network: The episode's network, and its volumes.
        addresses: The address of each name in it: services, and their aliases.
        images: The names of the services' images, by service.
        configs: The configurations of those images, by service.
    """

    compose: Compose
    network: Network
    addresses: Mapping[str, str]
    images: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any]]
    _running: dict[str, Service] = field(default_factory=dict)

    @staticmethod
    def beside(sandbox: Sandbox) -> Services:
        """Return the services beside a sandbox that was made from a Compose file.

        Raises:
            ConfigError: If it was made without a Compose file.
        """
        services = _beside.get(sandbox)
        if services is None:
            raise ConfigError(
                "the sandbox has no side services: it was made without a Compose file"
            )
        return services

    @property
    def own_mounts(self) -> list[str]:
        """The paths of the sandbox's file systems in memory that no side service shares."""
        main = self.compose.main
        mounts = mounts_of(main, self.network.volumes, self.configs[main.name])
        return [mount.target for mount in mounts if mount.volume is None]

    def main_profile(self, base: Profile) -> Profile:
        """Return the settings of the sandbox: the main service's container.

        Args:
            base: The user, working directory and variables of the task, which come before the
                file's; and limits, before which the file's come.

        Raises:
            ConfigError: If the numbers do not fit together.
        """
        return self._profile(self.compose.main, base, ())

    async def start_main(self, sandbox: Sandbox) -> None:
        """Copy the main service's files to the sandbox, start its program, and await its health.

        Raises:
            SandboxError: If the program has ended already, or is not healthy in time.
            OSError: If a file does not fit, for instance.
        """
        spec = self.compose.main
        config = self.configs[spec.name]
        service = Service(spec, sandbox, command_of_main(spec, config), health_of(spec, config))
        self._running[spec.name] = service
        _beside[sandbox] = self
        await service.start()
        await service.healthy()

    def service(self, name: str) -> Service:
        """Return a service by its name.

        Raises:
            ConfigError: If there is no such service.
        """
        if name not in self._running:
            hint = did_you_mean(name, list(self._running))
            raise ConfigError(f"{self.compose.path} has no service {name!r} that runs.{hint}")
        return self._running[name]

    def containers(self) -> dict[str, Sandbox]:
        """Return the containers of the side services, by their names."""
        return {spec.name: self.service(spec.name).sandbox for spec in self.compose.sides}

    def logs(self) -> dict[str, str]:
        """Return the end of what every service has written, by its name."""
        return {name: service.log for name, service in self._running.items()}

    async def _start(self, engine: Engine, base: Profile) -> None:
        """Start every side service: their containers at once, their programs in order."""
        sides = self.compose.sides
        await _all(self._make(engine, spec, base) for spec in sides)
        for spec in sides:
            await self._await_those_before(spec)
            await self._running[spec.name].start()
        await self._await_those_before(self.compose.main)
        for spec in sides:
            self._running[spec.name].check()
            await self._running[spec.name].healthy()

    async def _make(self, engine: Engine, spec: ServiceSpec, base: Profile) -> None:
        config = self.configs[spec.name]
        command, health = command_of(spec, config), health_of(spec, config)
        # Files are root's, commands run as its user.
        profile = replace(self._profile(spec, base, spec.capabilities), user=ROOT)
        profile = await asyncio.to_thread(prepare, engine, profile)
        sandbox = await DockerSandbox.create(engine, profile)
        user = spec.user or config.get("User") or ROOT
        self._running[spec.name] = Service(spec, sandbox, command, health, user)

    async def _await_those_before(self, spec: ServiceSpec) -> None:
        for name, condition in spec.after:
            service = self._running[name]
            if condition == "service_healthy":
                await service.healthy()
            elif condition == "service_completed_successfully":
                await service.completed()

    def _profile(self, spec: ServiceSpec, base: Profile, capabilities: tuple[str, ...]) -> Profile:
        joined = Joined(
            network=self.network.name,
            address=self.addresses[spec.name],
            hosts=tuple(self.addresses.items()),
            hostname=spec.hostname,
            mounts=mounts_of(spec, self.network.volumes, self.configs[spec.name]),
            read_only=spec.read_only,
            shm=spec.shm,
            capabilities=capabilities,
        )
        return profile_of(spec, self.images[spec.name], base, joined)

    async def _close(self) -> None:
        """Destroy the side services; the sandbox's owner closes that."""
        main = self._running.pop(self.compose.main.name, None)
        if main is not None:
            await main.leave()
        await _all(service.close() for service in self._running.values())


@contextlib.asynccontextmanager
async def open_services(
    engine: Engine,
    path: Path,
    *,
    image: Callable[[Build | str], Awaitable[str]],
    variables: Mapping[str, str] | None = None,
    main: str = "main",
    lifetime: float = LIMITS.lifetime,
    runtime: str | None = None,
    timeout: float = START_TIMEOUT,
) -> AsyncIterator[Services]:
    """Start the side services of a Compose file, in a separate network without access to others.

    Args:
        engine: The engine that runs them.
        path: The Compose file; see :func:`~vf.sandbox.services.compose.read_compose`.
        image: Returns the name of an image on the engine, built or pulled if need be.
        variables: Values of the variables in the file.
        main: The service that is the sandbox itself; the caller makes it, from
            :meth:`Services.main_profile`, and then calls :meth:`Services.start_main`.
        lifetime: Seconds until the services end by themselves.
        runtime: Another runtime than the engine's own.
        timeout: Seconds until all of them must work, once their images are there.

    Yields:
        The services, once each is started, healthy, or completed. They are destroyed on the way
        out.

    Raises:
        ConfigError: If the file requires what is not supported, or a service's container cannot be
            made.
        SandboxError: If a service has failed before the episode has begun, or the engine has.
    """
    compose = await asyncio.to_thread(read_compose, path, variables, main=main)
    specs = (compose.main, *compose.sides)
    names = [spec.name for spec in specs]
    images = await _all(image(spec.build or spec.image or "") for spec in specs)
    configs = await _all(_config(engine, name) for name in images)
    async with open_network(engine, compose.volumes, lifetime=lifetime) as network:
        services = Services(
            compose,
            network,
            {
                name: address
                for spec, address in zip(specs, network.addresses(), strict=False)
                for name in spec.aliases
            },
            dict(zip(names, images, strict=True)),
            dict(zip(names, configs, strict=True)),
        )
        base = Profile(limits=replace(LIMITS, lifetime=lifetime), runtime=runtime)
        try:
            await _in_time(services, services._start(engine, base), timeout)
            yield services
        finally:
            await services._close()


async def _in_time(services: Services, work: Awaitable[None], timeout: float) -> None:
    """Await the start of services.

    Raises:
        SandboxError: If it fails, or takes longer than ``timeout`` seconds.
    """
    path = services.compose.path
    try:
        async with asyncio.timeout(timeout):
            await work
    except TimeoutError:
        logs = "; ".join(
            f"{name}: {text[-ERROR_OUTPUT:]}" for name, text in services.logs().items()
        )
        raise SandboxError(
            f"the services of {path} do not work after {timeout:g} s; they wrote: {logs}"
        ) from None
    except OSError as error:
        raise SandboxError(f"a service of {path} cannot be started: {error}") from error


async def _config(engine: Engine, image: str) -> dict[str, Any]:
    config: dict[str, Any] = (await engine.call("inspect_image", image)).get("Config") or {}
    return config


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    """Await all at once; if one fails, cancel the others and wait for them."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
