"""How one service of a Compose file is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vf.sandbox.services.schema import Condition
from vf.sandbox.spec import Build, Pairs


@dataclass(frozen=True, slots=True)
class Health:
    """How a service shows that it works.

    Attributes:
        test: A command that succeeds then, or a line for the shell.
        interval: Seconds between tries.
        timeout: Seconds that one may take.
        retries: How many may fail in a row.
        start_period: Seconds in which failures do not count.
    """

    test: tuple[str, ...] | str
    interval: float
    timeout: float
    retries: int
    start_period: float


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service. None is what the image says.

    Attributes:
        name: The service's, by which others reach it.
        image: The name of its image, unless it is built.
        build: What its image is built from.
        command: The image's ``CMD``.
        entrypoint: The image's ``ENTRYPOINT``.
        env: Variables on top of the image's.
        workdir: Where it runs.
        user: Whom it runs as.
        after: Services that have to be started, healthy or completed before.
        health: How it shows that it works; None as the image says.
        healthless: Whether it shows nothing, whatever the image says.
        volumes: Shared ones: name, path and whether it is read-only.
        tmpfs: Temporary file systems: path and bytes, None for the default.
        copies: Files and folders beside the Compose file, and where they are copied to.
        folders: Empty folders of its own.
        aliases: Further names, by which others reach it.
        hostname: What it calls itself.
        memory: Bytes.
        cpus: Cores.
        pids: Processes and threads at once.
        shm: Bytes in /dev/shm.
        read_only: Whether its root is.
        capabilities: What root has in a side service.
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
