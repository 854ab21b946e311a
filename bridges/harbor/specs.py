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
MOST_TMP = 2**30
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
        task: The task.
        world: What it says of this container.
        user: Whom programs run as; None for the image's user.
        seconds: How long it is needed, the model's answers not counted.
        host_env: Variables of this machine that tasks may take over.
        defaults: Limits where the task says none, by the names of
            :class:`~vf.sandbox.contract.Limits`.
        outside: Whether there may be a way out: programs then find the proxy in their environment.

    Raises:
        ConfigError: A variable is not there, or may not be taken over.
    """
    env = resolved(world.env, f"{task.path}: environment.env", host_env)
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
    said = {"memory": world.memory, "cpus": world.cpus, "disk": world.storage}
    given: dict[str, Any] = {"memory": MEMORY, "cpus": CPUS, "disk": DISK}
    given |= {"pids": PIDS, "files": FILES, **defaults}
    given |= {name: value for name, value in said.items() if value is not None}
    files = min(given["memory"] // 4, MOST_TMP)  # of what is held in memory, such as /tmp
    given.setdefault("tmp", files)
    given.setdefault("workspace", files)
    # A model may take as long as its tools; equal lifetimes let tasks share a pool.
    hours = max(1.0, -(-(2 * (seconds + SETUP)) // HOUR))
    given.setdefault("lifetime", hours * HOUR)
    return Limits(**given)


def seconds_of(task: TaskFolder, agent_timeout: float) -> float:
    """Return how long all phases of a task may take together."""
    return sum(
        agent_seconds(part, agent_timeout) + (part.verifier.seconds or 0.0) for part in task.parts
    )


def agent_seconds(part: Part, agent_timeout: float) -> float:
    """Return how long the agent has."""
    return agent_timeout if part.agent.seconds is None else part.agent.seconds


def resolved(env: Mapping[str, str], where: str, host_env: Collection[str]) -> dict[str, str]:
    """Return variables with those of this machine in place of ``${NAME}``.

    A task may ask for any variable, a key of yours among them, and its container would have it. So
    only those that are named are taken over; of another one, the default in ``${NAME:-default}`` is
    taken.

    Raises:
        ConfigError: A variable is not set, or not named, and has no default.
    """
    found = {}
    for name, value in env.items():
        if (match := _TEMPLATE.fullmatch(value)) is None:
            found[name] = value
            continue
        theirs, default = match[1], match[2]
        ours = os.environ.get(theirs) if theirs in host_env else None
        if ours is None and default is None:
            what = "is not set" if theirs in host_env else "is not in env.args.host_env"
            raise ConfigError(
                f"{where}.{name} asks for this machine's variable {theirs}, which {what}; "
                + ("set it" if theirs in host_env else f'to pass it on, host_env = ["{theirs}"]')
            )
        found[name] = default if ours is None else ours
    return found
