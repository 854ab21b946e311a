"""Removes the containers, networks and volumes of dead runs, and nothing else.

Containers end by themselves when their client goes away, and at the end of their lifetime at the
latest. Leftovers are what an engine or a machine lost while it was going down: the reaper removes
them at the start of a run, and whenever a lost engine responds again. It removes only what has our
labels and a provably dead owner, so that runs on one engine do not disturb each other, and what
this process could not remove itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vf.runtime.errors import SandboxError
from vf.runtime.interrupts import is_alive
from vf.sandbox.container.docker_engine import Engine

MARK = "vf.sandbox"  # on every container of vf-rl
PREFIX = MARK + "."
GRACE = 3600.0  # seconds past the expiry: clocks of machines differ, and there is no hurry


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that makes sandboxes.

    Attributes:
        run: A name for this life of the process, never used twice.
        host: The machine since it last started, and the namespace in which ``pid`` counts.
        pid: The process.
        start: When the process started, in the kernel's own count; empty where unknown.
    """

    run: str
    host: str
    pid: int
    start: str

    def labels(self, lifetime: float) -> dict[str, str]:
        """Return the labels of a container that ends by itself after ``lifetime`` seconds."""
        return {
            MARK: "1",
            PREFIX + "run": self.run,
            PREFIX + "host": self.host,
            PREFIX + "pid": str(self.pid),
            PREFIX + "start": self.start,
            PREFIX + "expires": f"{time.time() + lifetime:.0f}",
        }


def this_process() -> Owner:
    """Return this process; a forked child is another."""
    return _owner(os.getpid())


@cache
def _owner(pid: int) -> Owner:
    return Owner(secrets.token_hex(6), this_host(), pid, start_of(pid) or "")


@cache
def this_host() -> str:
    """Return an id of this machine since its last start and of its process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def start_of(pid: int) -> str | None:
    """Return when a process of this machine started, "" where that is unknown, None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        return "" if is_alive(pid) else None
    # The name is in parentheses and may hold spaces; the 20th field after it is the start.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def cause_of_death(labels: Mapping[str, str], *, host: str, now: float) -> str | None:
    """Return why the owner of these labels is provably dead; None where it may be alive.

    On its own machine a process can be looked up. Elsewhere only time proves it: the container
    should have ended by itself long ago.

    Args:
        labels: The container's labels.
        host: This machine, as ``this_host`` names it.
        now: Seconds since the epoch.
    """
    try:
        expires, pid = float(labels[PREFIX + "expires"]), int(labels[PREFIX + "pid"])
    except (KeyError, ValueError):
        return None
    if labels.get(PREFIX + "host") == host:
        start, recorded = start_of(pid), labels.get(PREFIX + "start", "")
        if start is None:
            return f"its process {pid} is gone"
        if start and recorded:
            same = start == recorded
            return None if same else f"its process {pid} is gone, and another has its number"
    return "its time is over" if now > expires + GRACE else None


log = logging.getLogger("vf.sandbox")

_given_up: set[str] = set()


def give_up(name: str) -> None:
    """Leave a network or a volume of this process, which could not be removed, to the reaper."""
    _given_up.add(name)


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container of vf-rl, of this process or another.

    Attributes:
        id: The engine's id.
        name: Its name.
        state: The engine's word: created, running, exited, dead, ...
        run: The run of its owner.
        pid: The process that made it, on its machine.
        mine: Whether this process made it.
        expires: When it ends by itself, seconds since the epoch; None where its label is broken.
        dead: Why its owner is provably dead; None where it may be in use.
    """

    id: str
    name: str
    state: str
    run: str
    pid: str
    mine: bool
    expires: float | None
    dead: str | None


async def find(engine: Engine) -> list[ListedContainer]:
    """List our containers in every state.

    Raises:
        SandboxError: If the engine does not respond.
    """
    listed = await engine.call("containers", all=True, filters={"label": f"{MARK}=1"})
    now, host, me = time.time(), this_host(), this_process()
    containers = []
    for listing in listed:
        labels = listing.get("Labels") or {}
        run = labels.get(PREFIX + "run", "")
        try:
            expires = float(labels[PREFIX + "expires"])
        except (KeyError, ValueError):
            expires = None
        containers.append(
            ListedContainer(
                id=listing["Id"],
                name=(listing.get("Names") or ["/?"])[0].lstrip("/"),
                state=listing.get("State", "?"),
                run=run,
                pid=labels.get(PREFIX + "pid", "?"),
                mine=run == me.run,
                expires=expires,
                dead=cause_of_death(labels, host=host, now=now),
            )
        )
    return containers


async def reap(engine: Engine) -> list[ListedContainer]:
    """Remove what has a provably dead owner; return the containers among it.

    Raises:
        SandboxError: If the engine does not respond.
    """
    condemned = [container for container in await find(engine) if container.dead]
    ends = await asyncio.gather(
        *(engine.remove(container.id) for container in condemned), return_exceptions=True
    )
    removed = []
    for container, end in zip(condemned, ends, strict=True):
        if isinstance(end, SandboxError):
            log.warning("container %s could not be removed: %s", container.name, end)
        elif isinstance(end, BaseException):
            raise end
        else:
            removed.append(container)
            log.info("removed container %s: %s", container.name, container.dead)
    await _reap_rest(engine)
    return removed


async def _reap_rest(engine: Engine) -> None:
    """Remove networks and volumes, after the containers that use them."""
    marked, now, host = {"label": f"{MARK}=1"}, time.time(), this_host()
    networks = await engine.call("networks", filters=marked)
    volumes = (await engine.call("volumes", filters=marked)).get("Volumes") or []
    resources = [("network", resource) for resource in networks] + [
        ("volume", resource) for resource in volumes
    ]
    for kind, resource in resources:
        name = resource["Name"]
        dead = cause_of_death(resource.get("Labels") or {}, host=host, now=now)
        if name in _given_up:
            dead = "its episode is over"
        if dead is None:
            continue
        try:
            await engine.call(f"remove_{kind}", name)
            _given_up.discard(name)
            log.info("removed %s %s: %s", kind, name, dead)
        except SandboxError as error:  # another run was faster, say
            log.warning("%s %s could not be removed: %s", kind, name, error)
