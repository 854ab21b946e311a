"""The settings of the containers of a Compose file's services, and the programs in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vf.runtime.errors import ConfigError
from vf.sandbox.container.hardening import OVERHEAD, SHM, Profile
from vf.sandbox.container.joined import Joined, Mount
from vf.sandbox.services.service_spec import Health, ServiceSpec

SUPERVISOR_PIDS = 16  # of a service's container, on top of what its file allows
NANO = 1e9
# Programs of containers that only wait.
IDLE = {
    ("sleep", "infinity"),
    ("tail", "-f", "/dev/null"),
    ("sh", "-c", "sleep infinity"),
    ("sh", "-c", "tail -f /dev/null"),
    ("bash", "-c", "sleep infinity"),
    ("/bin/bash", "-c", "sleep infinity"),
    ("/bin/sh", "-c", "sleep infinity"),
}


def mounts_of(
    spec: ServiceSpec, volumes: Mapping[str, str], config: Mapping[str, Any]
) -> tuple[Mount, ...]:
    """Return a service's file systems.

    Args:
        spec: The service's spec.
        volumes: The engine's names of the episode's volumes.
        config: The configuration of its image.
    """
    shared = [
        Mount(target, volumes[name], read_only=read_only)
        for name, target, read_only in spec.volumes
    ]
    own = [
        Mount(target) if size is None else Mount(target, size=size) for target, size in spec.tmpfs
    ]
    # The engine would give each of the image's volumes a place on its disk, without a limit.
    covered = {mount.target for mount in [*shared, *own]}
    own += [Mount(target) for target in config.get("Volumes") or {} if target not in covered]
    return (*shared, *own)


def profile_of(spec: ServiceSpec, image: str, base: Profile, joined: Joined) -> Profile:
    """Return the settings of a service's container.

    Args:
        spec: The service's spec. Its limits come before those of ``base``.
        image: The name of its image.
        base: The user, working directory and variables that come before the spec's, and the other
            defaults.
        joined: The network and volumes that it shares with the others.

    Raises:
        ConfigError: If the numbers do not fit together.
    """
    limits, shm = base.limits, joined.shm or SHM
    try:
        if spec.memory is not None:  # what the supervisor and files in memory need comes on top
            limits = replace(limits, memory=spec.memory + OVERHEAD + shm + limits.tmp)
        if spec.pids is not None:
            limits = replace(limits, pids=spec.pids + SUPERVISOR_PIDS)
        return replace(
            base,
            image=image,
            packages=(),
            limits=replace(limits, cpus=spec.cpus or limits.cpus),
            writable=True,
            user=spec.user if base.user is None else base.user,
            workdir=spec.workdir if base.workdir is None else base.workdir,
            env={**dict(spec.env), **dict(base.env)},
            entry=None,
            joined=joined,
        )
    except ValueError as error:
        raise ConfigError(f"services.{spec.name}: {error}") from error


def command_of(spec: ServiceSpec, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the program of a side service: the file's, or its image's.

    Raises:
        ConfigError: If there is none.
    """
    entrypoint, command = spec.entrypoint, spec.command
    if entrypoint is None:
        entrypoint = tuple(config.get("Entrypoint") or ())
        if command is None:
            command = tuple(config.get("Cmd") or ())
    if not (program := (*entrypoint, *(command or ()))):
        raise ConfigError(
            f"services.{spec.name}.command: there is none, and its image has none either"
        )
    return program


def command_of_main(spec: ServiceSpec, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the program of the main service: only the file's, and none that only waits.

    The image's own program is not run, as in every sandbox.
    """
    program = (spec.entrypoint or ()) + (spec.command or ())
    return command_of(spec, config) if program and program not in IDLE else ()


def health_of(spec: ServiceSpec, config: Mapping[str, Any]) -> Health | None:
    """Return the health check of a service: the file's, or its image's."""
    if spec.health is not None or spec.healthless:
        return spec.health
    check = config.get("Healthcheck") or {}
    kind, *words = check.get("Test") or ["NONE"]
    if kind not in ("CMD", "CMD-SHELL"):
        return None

    def seconds(key: str, default: float) -> float:
        return (check.get(key) or 0) / NANO or default

    return Health(
        tuple(words) if kind == "CMD" else " ".join(words),
        seconds("Interval", 30.0),
        seconds("Timeout", 30.0),
        check.get("Retries") or 3,
        seconds("StartPeriod", 0.0),
    )
