"""The features of an engine on which the settings of a container depend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vf.sandbox.uids import WIDE

NARROW = range(10_000, 60_000)  # within the 65,536 ids that a user namespace maps usually
NPROC = 8192
ISOLATING = (1, 41)  # the API's version in Docker 20.10
EVENTS = 256  # that Docker's engine keeps, in memory: `eventsLimit` in moby's daemon/events


@dataclass(frozen=True, slots=True)
class Features:
    """What an engine can do.

    Attributes:
        uids: The uids that the model's code may run as.
        own_seccomp: Whether it takes a seccomp profile with a container. Podman's compatible API
            takes a path on its own machine only.
        sysctls: Whether it may set the limits of shared memory, message queues and semaphores.
            A rootless one may not on every kernel.
        tmpfs: Whether a temporary file system can have an owner and a number of files. Podman
            takes no such options: the working directory is then as ``/tmp`` is, and the number of
            files is limited by the memory that they count as.
        nproc: Processes that one user may have on the whole machine; None: as the engine has it.
            Podman's million takes CAP_SYS_RESOURCE, which root in a container lacks.
        networks: Whether it makes networks that its own machine has no address in: Docker 20.10 and
            later do.
        cores: How many its machine has.
        memory: How many events it remembers since its last start; None where that is unknown.
        id: Its permanent id; empty for Podman, which returns another one each time.
    """

    uids: range = WIDE
    own_seccomp: bool = True
    sysctls: bool = True
    tmpfs: bool = True
    nproc: int | None = None
    networks: bool = True
    cores: int = 1
    memory: int | None = None
    id: str = ""


def features_of(info: Mapping[str, Any], version: Mapping[str, Any]) -> Features:
    """Return what an engine can do.

    Args:
        info: Its answer to ``GET /info``.
        version: Its answer to ``GET /version``.
    """
    options = " ".join(info.get("SecurityOptions") or ())
    rootless = "name=rootless" in options
    names = [str(part.get("Name")) for part in version.get("Components") or ()]
    podman = any("Podman" in name for name in names)
    return Features(
        uids=NARROW if rootless or "name=userns" in options else WIDE,
        own_seccomp=not podman,
        sysctls=not rootless,
        tmpfs=not podman,
        nproc=NPROC if podman else None,
        networks=not podman and api_version(version) >= ISOLATING,
        cores=int(info.get("NCPU") or 1),
        memory=EVENTS if "Engine" in names and not podman else None,
        id="" if podman else str(info.get("ID") or ""),
    )


def api_version(version: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the version of the engine's API; empty if it is invalid."""
    try:
        return tuple(int(part) for part in str(version.get("ApiVersion")).split("."))
    except ValueError:
        return ()
