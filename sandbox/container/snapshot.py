"""Snapshots of a container's files: images that live as long as the process that made them.

Code with a writable root can leave a state from which no container starts, such as one without the
user that code runs as. The code caused that, not the engine, so opening such a snapshot gives a
sandbox that has ended.
"""

from __future__ import annotations

import errno
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import BinaryIO, TypeVar

from vf.runtime.errors import SandboxError, VfError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.reaper import PREFIX, cause_of_death, this_host, this_process
from vf.sandbox.container.remains import remember
from vf.sandbox.session import Session
from vf.sandbox.session_sandbox import Ended, SessionSandbox

log = logging.getLogger("vf.sandbox")

REPOSITORY = "vf-snapshot"
LABEL = f"{PREFIX}snapshot"
LIFETIME = 30 * 86400.0  # seconds: where the process cannot be looked up
# What engines read before a program starts, to learn who its user is.
LISTS = ("/etc/passwd", "/etc/group")
NO_FILE = 1 << 31 | 1 << 27 | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19  # Go's os.ModeType
LINK = 1 << 27
T = TypeVar("T")
_numbers = itertools.count(1)
_damaged: dict[str, str] = {}  # why no container starts from a snapshot, by its name


class SnapshotDamaged(VfError):
    """No container starts from a snapshot: code damaged the files before it was taken."""


def is_snapshot(image: str) -> bool:
    """Return whether an image is a snapshot of a container."""
    return image.startswith(f"{REPOSITORY}:")


def check_snapshot(image: str) -> None:
    """Refuse a snapshot from which no container has started before.

    Raises:
        SnapshotDamaged: If no container starts from it.
    """
    if (reason := _damaged.get(image)) is not None:
        raise SnapshotDamaged(f"the snapshot {image} does not start: {reason}")


async def check_lists(engine: Engine, container: str) -> None:
    """Check that an engine can read the lists of users in a container that has not started.

    With a FIFO in place of one, Docker waits for ever when it starts the container, and then
    cannot remove it either.

    Raises:
        SandboxError: If one is not a file, or the engine does not respond.
    """
    for path in LISTS:
        stat = await engine.stat(container, path)
        if stat is not None and stat["mode"] & LINK:
            stat = await engine.stat(container, stat["linkTarget"])  # where all links end
        if stat is not None and stat["mode"] & NO_FILE:
            raise SandboxError(f"its {path} is not a file")


def damaged(image: str, reason: str) -> SnapshotDamaged:
    """Remember that no container starts from a snapshot; return the error that says so."""
    _damaged[image] = reason
    error = SnapshotDamaged(f"the snapshot {image} does not start: {reason}")
    log.warning("%s; what is opened from it has ended already", error)
    return error


class EndedSandbox(SessionSandbox):
    """A sandbox that has ended through what ran in it, before it was opened.

    Args:
        damage: The error that tells how it ended.
    """

    def __init__(self, damage: SnapshotDamaged) -> None:
        super().__init__("of a damaged snapshot")
        self._end_message = f"the sandbox has ended through what ran before in it: {damage}"

    async def snapshot(self) -> str:
        """Raise OSError: there is nothing to keep."""
        raise OSError(errno.EIO, self._end_message)

    async def read_tree(self, path: str, read: Callable[[Iterator[bytes]], T]) -> T:
        """Raise OSError: there is nothing to read."""
        raise OSError(errno.EIO, self._end_message)

    async def write_tree(self, archive: BinaryIO) -> None:
        """Raise OSError: there is nothing to write to."""
        raise OSError(errno.EIO, self._end_message)

    async def remove(self, paths: Collection[str]) -> None:
        """Raise OSError: there is nothing to remove."""
        raise OSError(errno.EIO, self._end_message)

    async def _ask(self, call: Callable[[Session], Awaitable[T]]) -> T:
        if self.closed:
            raise SandboxError(f"the sandbox {self.name} is closed")
        raise Ended(self._end_message)

    async def _close(self) -> None:
        """There is nothing to end."""

    async def _outside(self) -> str | None:
        return None


async def take_snapshot(engine: Engine, container: str, profile: Profile) -> str:
    """Return the name of an image with a container's files; it is paused meanwhile.

    Raises:
        SandboxError: If the engine failed.
    """
    tag = f"{this_process().run}-{next(_numbers)}"
    name = f"{REPOSITORY}:{tag}"
    remember(name, engine, partial(engine.call_now, "remove_image", name, force=True))
    # What the container itself has is the supervisor's.
    config = {
        "Labels": {**this_process().labels(LIFETIME), LABEL: "1"},
        "Env": [f"{name}={value}" for name, value in profile.code_env.items()],
        "User": profile.code_user,
        "WorkingDir": profile.code_workdir,
        "Entrypoint": [],
        "Cmd": [],
    }
    await engine.call("commit", container, repository=REPOSITORY, tag=tag, conf=config)
    return name


async def reap_snapshots(engine: Engine) -> None:
    """Remove the snapshots of processes that are provably dead.

    Raises:
        SandboxError: If the engine does not respond.
    """
    now, host = time.time(), this_host()
    for image in await engine.call("images", filters={"label": f"{LABEL}=1"}):
        cause = cause_of_death(image.get("Labels") or {}, host=host, now=now)
        for name in (image.get("RepoTags") or ()) if cause else ():
            # An image that was built on one has its labels, too.
            if name.startswith(f"{REPOSITORY}:"):
                try:
                    await engine.call("remove_image", name)
                    log.info("removed the snapshot %s: %s", name, cause)
                except SandboxError as error:
                    log.warning("the snapshot %s could not be removed: %s", name, error)
