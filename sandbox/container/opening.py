"""Opens containers: one sandbox, or a pool of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from vf.runtime.errors import SandboxError
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.reaper import reap
from vf.sandbox.container.snapshot import reap_snapshots
from vf.sandbox.pool import SandboxPool

log = logging.getLogger("vf.sandbox")


@contextlib.asynccontextmanager
async def open_engine(
    profile: Profile, address: Address | None = None
) -> AsyncIterator[tuple[Engine, Profile]]:
    """Connect to the engine, check it, and remove what dead runs left there.

    Args:
        profile: The settings of the containers.
        address: The engine's address; None: that of ``DOCKER_HOST``, or this machine's.

    Yields:
        The engine, and the profile with an image that has the packages.

    Raises:
        ConfigError: If containers with this profile cannot be made; the message says how to fix it.
        SandboxError: If the engine stopped responding.
    """
    engine = await asyncio.to_thread(Engine.connect, address)
    try:
        profile = await asyncio.to_thread(prepare, engine, profile)
        try:
            await reap(engine)
            await reap_snapshots(engine)
        except SandboxError as error:
            log.warning("what dead runs left behind could not be removed: %s", error)
        yield engine, profile
    finally:
        await asyncio.to_thread(engine.close)


@contextlib.asynccontextmanager
async def open_container(
    profile: Profile | None = None, address: Address | None = None
) -> AsyncIterator[DockerSandbox]:
    """Make one sandbox; it is destroyed on the way out.

    Raises:
        ConfigError: If it cannot be made; the message says how to fix it.
        SandboxError: If the engine failed.
    """
    async with (
        open_engine(profile or Profile(), address) as (engine, prepared),
        await DockerSandbox.create(engine, prepared) as sandbox,
    ):
        yield sandbox


@contextlib.asynccontextmanager
async def open_pool(
    profile: Profile | None = None,
    *,
    size: int = 4,
    concurrency: int = 4,
    address: Address | None = None,
) -> AsyncIterator[SandboxPool[DockerSandbox]]:
    """Keep ``size`` sandboxes ready, ``concurrency`` made at a time; all are destroyed at the end.

    Raises:
        ConfigError: If none can be made; the message says how to fix it.
        SandboxError: If the engine failed.
        ValueError: If a number is not positive.
    """
    async with open_engine(profile or Profile(), address) as (engine, prepared):

        async def make() -> DockerSandbox:
            return await DockerSandbox.create(engine, prepared, warm=True)

        # Half of its lifetime is the episode's.
        age = prepared.limits.lifetime / 2
        async with SandboxPool(make, size, concurrency=concurrency, max_age=age) as pool:
            yield pool
