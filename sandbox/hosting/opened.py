"""A container with a spec's side services and its proxy to allowed hosts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.snapshot import is_snapshot
from vf.sandbox.images.builds import Images
from vf.sandbox.pool import Opened
from vf.sandbox.services.opening import Services, open_services
from vf.sandbox.services.proxy import PROXY_PORT, Proxy
from vf.sandbox.spec import SandboxSpec


async def open_one(
    engine: Engine, spec: SandboxSpec, profile: Profile, images: Images
) -> Opened[DockerSandbox]:
    """Make a container with its side services and its proxy.

    Args:
        engine: The engine that runs it.
        spec: The spec, which names side services and allowed hosts.
        profile: The prepared settings of the container, where its Compose file does not set them.
        images: The images of side services.

    Raises:
        ConfigError: If it cannot be made; says how to fix it.
        SandboxError: If the engine failed, or a side service did before the episode began.
        SnapshotDamaged: If the image is a snapshot from which no container starts.
    """
    async with AsyncExitStack() as stack:
        services: Services | None = None
        if spec.compose is not None:
            services = await stack.enter_async_context(
                open_services(
                    engine,
                    spec.compose,
                    image=images.image,
                    variables=dict(spec.compose_variables),
                    main=spec.compose_main,
                    lifetime=profile.limits.lifetime,
                    runtime=profile.runtime,
                )
            )
        if spec.allow:
            others = [] if services is None else services.addresses
            proxied = Proxy.environ(PROXY_PORT, direct=list(others))
            profile = replace(profile, env=proxied | dict(profile.env))
        if services is not None:
            profile = await asyncio.to_thread(prepare, engine, services.main_profile(profile))
        # What code has left in a snapshot is not run before an episode has it.
        warm = not is_snapshot(profile.image)
        sandbox = await DockerSandbox.create(engine, profile, warm=warm)
        try:
            if spec.allow:
                proxy = await stack.enter_async_context(Proxy(spec.allow))
                await sandbox.forward(proxy.address, port=PROXY_PORT)
            if services is not None:
                sandbox.beside = services.containers()
                await services.start_main(sandbox)
        except BaseException as error:
            await sandbox.close()
            if not isinstance(error, OSError):
                raise
            raise SandboxError(f"a sandbox ended before its episode began: {error}") from error
        return Opened(sandbox, stack.pop_all())
