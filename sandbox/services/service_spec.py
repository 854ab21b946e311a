"""The spec of one service of a Compose file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vf.sandbox.services.schema import Condition
from vf.sandbox.spec import Build, Pairs


@dataclass(frozen=True, slots=True)
class Health:
    """The health check of a service.

    Attributes:
        test: A command, or a line for the shell, that succeeds if the service works.
        interval: Seconds between tries.
        timeout: Seconds that a try may take.
        retries: Number of tries that may fail in a row.
        start_period: Seconds in which failures do not count.
    """

    test: tuple[str, ...] | str
    interval: float
    timeout: float
    retries: int
    start_period: float


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service. None leaves a setting to the image.

    Attributes:
        name: The service's name, by which others reach it.
        image: The name of its image, unless it is built.
        build: What its image is built from.
        command: The image's ``CMD``.
        entrypoint: The image's ``ENTRYPOINT``.
        env: Variables on top of the image's.
        workdir: The working directory.
        user: The user that it runs as.
        after: Services that have to be started, healthy or completed before.
        health: The health check; None for the image's.
        healthless: Whether it has no health check, not even the image's.
        volumes: Shared ones: name, path and whether it is read-only.
        tmpfs: Temporary file systems: path and bytes, None for the default.
        copies: Files and folders beside the Compose file, and where they are copied to.
        folders: Empty folders of its own.
        aliases: Further names, by which others reach it.
        hostname: Its own host name.
        memory: Bytes.
        cpus: Cores.
        pids: Processes and threads at once.
        shm: Bytes in /dev/shm.
        read_only: Whether its root is read-only.
        capabilities: The capabilities of root in a side service.
    """

    name: str
    image: str | None
    build: Build | None
    command: tuple[str, ...] | None
    entrypoint: tuple[str, ...] | None
    env: Pairs
    workdir: str | None
    user: str | None
    after: tuple[tuple[str, Condition], ...]
    health: Health | None
    healthless: bool
    volumes: tuple[tuple[str, str, bool], ...]
    tmpfs: tuple[tuple[str, int | None], ...]
    copies: tuple[tuple[Path, str], ...]
    folders: tuple[str, ...]
    aliases: tuple[str, ...]
    hostname: str
    memory: int | None
    cpus: float | None
    pids: int | None
    shm: int | None
    read_only: bool
    capabilities: tuple[str, ...]
