"""From a task folder to the specs of its containers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from vf.bridges.harbor.model import CPUS, MEMORY, Part, TaskFolder, World
from vf.runtime.errors import ConfigError
from vf.sandbox.contract import Limits
from vf.sandbox.services.compose import read_compose
from vf.sandbox.services.proxy import Proxy
from vf.sandbox.spec import Build, SandboxSpec

PROXY_PORT = 3128  # on the loopback inside, where a task may have a way out
# Where a task says nothing; it may use all of its memory for temporary files, almost.
DISK = 10 * 2**30
PIDS, FILES = 512, 50_000
MAX_TMP = 2**30
HOUR = 3600.0
SETUP = 600.0  # seconds for everything but the phases: the build does not count
_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)


def container_of(
    task: TaskFolder,
    world: World,
    user: str | None,
    seconds: float,
    *,
    host_env: Collection[str],
    defaults: Mapping[str, Any],
    outside: bool,
) -> SandboxSpec:
    """Return what a container of a task is made from.

    Args:
        task: Task of the container.
        world: Settings of this container.
        user: User whose identity programs have; None for the image's user.
        seconds: Seconds that it is needed, the model's answers not counted.
        host_env: Names of this machine's environment variables that tasks may use.
        defaults: Limits where the task sets none, by the names of
            :class:`~vf.sandbox.contract.Limits`.
        outside: Whether tasks may reach a network: programs then find the proxy in their
            environment.

    Raises:
        ConfigError: If an environment variable is not set, or may not be used.
    """
    env = resolve_env(world.env, f"{task.path}: environment.env", host_env)
    if outside:
        env = {**Proxy.environ(PROXY_PORT, direct=_beside(world)), **env}
    return SandboxSpec(
        image=world.image,
        build=None if world.build is None else Build(world.build, timeout=world.build_timeout),
        compose=world.compose,
        compose_main=world.main,
        compose_variables=world.variables,
        writable=True,
        user=user,
        workdir=world.workdir,
        env=env,
        limits=_limits(world, seconds, defaults),
    )


def _beside(world: World) -> list[str]:
    """Return the names of the services beside a container: no proxy is between them."""
    if world.compose is None:
        return []
    sides = read_compose(world.compose, world.variables, main=world.main).sides
    return [alias for side in sides for alias in side.aliases]


def _limits(world: World, seconds: float, defaults: Mapping[str, Any]) -> Limits:
    own = {"memory": world.memory, "cpus": world.cpus, "disk": world.storage}
    limits: dict[str, Any] = {"memory": MEMORY, "cpus": CPUS, "disk": DISK}
    limits |= {"pids": PIDS, "files": FILES, **defaults}
    limits |= {name: value for name, value in own.items() if value is not None}
    in_memory = min(limits["memory"] // 4, MAX_TMP)  # bytes of files in memory, such as /tmp
    limits.setdefault("tmp", in_memory)
    limits.setdefault("workspace", in_memory)
    # A model may take as long as its tools; equal lifetimes let tasks share a pool.
    hours = max(1.0, -(-(2 * (seconds + SETUP)) // HOUR))
    limits.setdefault("lifetime", hours * HOUR)
    return Limits(**limits)


def seconds_of(task: TaskFolder, agent_timeout: float) -> float:
    """Return how long all phases of a task may take together."""
    return sum(
        agent_seconds(part, agent_timeout) + (part.verifier.seconds or 0.0) for part in task.parts
    )


def agent_seconds(part: Part, agent_timeout: float) -> float:
    """Return how long the agent has."""
    return agent_timeout if part.agent.seconds is None else part.agent.seconds


def resolve_env(env: Mapping[str, str], where: str, host_env: Collection[str]) -> dict[str, str]:
    """Return variables with those of this machine in place of ``${NAME}``.

    A task may ask for any variable, even one of your keys, and its container would have it. So only
    those in ``host_env`` are used; for another one, the default in ``${NAME:-default}`` is.

    Raises:
        ConfigError: If a variable is not set, or may not be used, and has no default.
    """
    values = {}
    for name, value in env.items():
        if (match := _TEMPLATE.fullmatch(value)) is None:
            values[name] = value
            continue
        source, default = match[1], match[2]
        host_value = os.environ.get(source) if source in host_env else None
        if host_value is None and default is None:
            reason = "is not set" if source in host_env else "is not in env.args.host_env"
            raise ConfigError(
                f"{where}.{name} asks for this machine's variable {source}, which {reason}; "
                + ("set it" if source in host_env else f'to pass it on, host_env = ["{source}"]')
            )
        values[name] = default if host_value is None else host_value
    return values
