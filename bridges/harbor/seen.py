"""What the tests see of an agent: the work folder and what the task keeps, in a fresh container.

Of the agent's container the work folder, ``/app``, ``/logs``, and the declared artifacts are
copied, by the engine: no program inside has a part in it. Everything else is the image's. In a
home that is part of the work, hidden files are programs' settings, and so they are the image's too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import tarfile
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO, Self, TypeVar

from vf.bridges.harbor.container import ROOT, Spoilt, as_root, spoiling
from vf.bridges.harbor.links import links_to_theirs
from vf.bridges.harbor.model import VERIFIER, Part
from vf.runtime.errors import SandboxError
from vf.runtime.workers import in_thread
from vf.sandbox.audit import Auditable
from vf.sandbox.contract import Sandbox
from vf.sandbox.trees import (
    Tree,
    above,
    copy_tree,
    differences,
    read_pieces,
    reading,
    topmost,
    within,
    writing,
)

MOST = 4 * 2**30  # bytes of the work, where its container may have more
MOST_ALONE = 8  # paths that are read again one by one
APP = "/app"  # the format's own work folder
LOGS = "/logs"  # without the tests' own
NO_TREE = (ValueError, tarfile.TarError)  # what an archive raises that is no tree of files
IN_MEMORY = ("/tmp", "/dev/shm", "/dev/mqueue")  # the engine does not see what is there


T = TypeVar("T")


@dataclass(slots=True)
class Known:
    """What is known of an image.

    Attributes:
        workdir: The working directory; empty where it has none of its own.
        homes: The homes of those who run tests.
        visible: Whether the engine sees what is written in the container.
        tree: All of its files, once they were needed.
    """

    workdir: str
    homes: Mapping[str, str] = field(default_factory=dict)
    visible: bool = True
    tree: Tree | None = None


async def look(sandbox: Sandbox, users: Collection[str]) -> Known:
    """Look up what has to be known of an image, in a container that no agent has used.

    Raises:
        Spoilt: Its shell does not work.
        SandboxError: It is lost.
    """
    workdir = (await sandbox.exec(["/bin/sh", "-c", "pwd -P"])).stdout.strip()
    homes = {}
    for user in users:
        said = await sandbox.exec(["/bin/sh", "-c", 'printf %s "$HOME"'], user=user, cwd="/")
        homes[user] = said.stdout
    visible = isinstance(sandbox, Auditable) and not within(workdir, IN_MEMORY)
    if isinstance(sandbox, Auditable) and visible:
        mark = f"/logs/.vf-{secrets.token_hex(8)}"
        await as_root(sandbox, f": > {mark}")
        try:
            await sandbox.read_tree(mark, lambda pieces: sum(map(len, pieces)))
        except FileNotFoundError:
            visible = False  # not every runtime lets its engine see what is written
        await as_root(sandbox, f"rm {mark}")
    return Known("" if workdir == "/" else workdir, homes, visible)


def declared(part: Part) -> list[str]:
    """Return what a part keeps beside its work, of the agent's own container."""
    return [each.source for each in part.artifacts if each.service in (None, "main")]


def kept(part: Part, workdir: str) -> tuple[str, ...]:
    """Return the folders and files of the agent's container that the tests see.

    None is within another, and none is held in memory.
    """
    own = [workdir] if workdir else []
    every = {
        str(PurePosixPath(workdir or "/", path)) for path in (*own, APP, LOGS, *declared(part))
    }
    return tuple(path for path in sorted(topmost(every)) if not within(path, IN_MEMORY))


class Work:
    """What the tests see of an agent. Used as ``with Work(...) as work``.

    The copies are files of this machine without names: with this process, they are gone.

    Args:
        part: The part of the task that it is for.
        known: What is known of the image.
        max_bytes: Bytes of each of the two copies that this machine keeps for a while.
    """

    def __init__(self, part: Part, known: Known, max_bytes: int) -> None:
        self._most = min(MOST, max_bytes)
        self.paths = kept(part, known.workdir)
        home = known.homes.get(part.verifier.user or ROOT, "")
        self._home = home if within(home, self.paths) else ""
        self._declared = declared(part)
        self._archives: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the copies."""
        self._stack.close()

    async def take(self, sandbox: Auditable) -> None:
        """Copy it out of a container in which nothing runs any more.

        Raises:
            Spoilt: It is too large, or the container has ended.
            SandboxError: The container is lost, or this machine fails.
        """
        files, room = {path: self._file() for path in self.paths}, Room(self._most)
        await sandbox.remove([VERIFIER])  # it is not part of the work, and may be very large
        with spoiling("the work cannot be copied for the tests", *NO_TREE):
            there = await _each(
                sandbox, {path: partial(_save, file, room) for path, file in files.items()}
            )
        self._archives = {path: files[path] for path in there}

    async def put(self, sandbox: Auditable) -> set[str]:
        """Make it what a container has that nobody has used, and compare.

        Returns:
            Links of the agent's that were left out: see :mod:`vf.bridges.harbor.links`.

        Raises:
            Spoilt: It does not fit, or is no longer the same there.
            SandboxError: The container is lost, or this machine fails.
        """
        with spoiling("the work cannot be copied for the tests", *NO_TREE):
            there = await self._found(sandbox, self.paths)
            work: Tree = await in_thread(self._copy)
            links = {path for path in links_to_theirs(work) if there.get(path) != work[path]}
            work = {path: entry for path, entry in work.items() if path not in links}
            for path in (self._home, *above(self._home)):
                if path in work and work[path].kind != tarfile.DIRTYPE:
                    raise ValueError(f"{path} is not a folder any more")
            gone, missing = differences(there, work)
            if not gone and not missing:
                return links
            archive = self._file()
            await in_thread(self._copy, archive, missing)
            if gone:
                await sandbox.remove(gone)
            await sandbox.write_tree(archive)
            done = topmost({*gone, *missing})
            if len(done) > MOST_ALONE or not all(_can_be_alone(path, work) for path in done):
                done = {*self.paths}
            there = await self._found(sandbox, done)
        wanted = {path: entry for path, entry in work.items() if within(path, done)}
        for path in there.keys() | wanted.keys():
            if there.get(path) != wanted.get(path):
                raise Spoilt(f"the work cannot be copied for the tests: {path!r} is not the same")
        return links

    def _file(self) -> BinaryIO:
        with _this_machine():
            return self._stack.enter_context(tempfile.TemporaryFile())

    def _copy(self, archive: BinaryIO | None = None, chosen: Collection[str] = ()) -> Tree:
        """Return all of it, and write what is chosen of it to an archive. Blocks."""
        found: Tree = {}
        with _this_machine(), ExitStack() as stack:
            to: tarfile.TarFile | None = None
            if archive is not None:
                to = stack.enter_context(writing(archive))
            wanted = self._is_work if to is None else chosen.__contains__
            for path, file in self._archives.items():
                file.seek(0)
                with reading(file) as source:
                    most = math.inf if to is None else self._most
                    found |= copy_tree(
                        source, to, under=_parent(path), selected=wanted, whole=True, max_bytes=most
                    )
        if archive is not None:
            archive.seek(0)
        return found

    async def _found(self, sandbox: Auditable, paths: Collection[str]) -> Tree:
        """Return what a container has of it at some paths."""
        most = 2 * MOST
        readers = {p: partial(read_pieces, under=_parent(p), max_bytes=most) for p in paths}
        found = await _each(sandbox, readers)
        every = (item for tree in found.values() for item in tree.items())
        return {path: entry for path, entry in every if self._is_work(path)}

    def _is_work(self, path: str) -> bool:
        hidden = bool(self._home) and path.startswith(f"{self._home}/.")
        return within(path, self._declared) or not (hidden or within(path, (VERIFIER,)))


def _can_be_alone(path: str, tree: Tree) -> bool:
    """Return whether an engine reads a path by itself: its name is UTF-8, and it is not a link.

    Links that lead to each other would be too many for it.
    """
    utf8 = not any("\ud800" <= character <= "\udfff" for character in path)
    return utf8 and (path not in tree or tree[path].kind != tarfile.SYMTYPE)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


async def _each(
    sandbox: Auditable, readers: Mapping[str, Callable[[Iterator[bytes]], T]]
) -> dict[str, T]:
    """Read some paths at once, and return what comes of those that are there."""
    reading = (sandbox.read_tree(path, read) for path, read in readers.items())
    done = await asyncio.gather(*reading, return_exceptions=True)  # all of them: they have files
    found: dict[str, T] = {}
    for path, result in zip(readers, done, strict=True):
        if not isinstance(result, BaseException):
            found[path] = result
        elif not isinstance(result, FileNotFoundError):
            raise result
    return found


class Room:
    """How many bytes may be written to several files that are written at once.

    Args:
        size: All of them.
    """

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._lock = threading.Lock()

    def use(self, count: int) -> None:
        """Take some of it.

        Raises:
            ValueError: There is not that much left.
        """
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise ValueError(f"it has more than {self._size} bytes")


def _save(file: BinaryIO, room: Room, pieces: Iterator[bytes]) -> None:
    """Write an archive to a file. Blocks.

    Raises:
        ValueError: It is too large.
    """
    for piece in pieces:
        room.use(len(piece))
        with _this_machine():
            file.write(piece)


@contextlib.contextmanager
def _this_machine() -> Iterator[None]:
    """Treat an OSError as this machine's.

    Raises:
        SandboxError: There was one.
    """
    try:
        yield
    except OSError as error:
        raise SandboxError(f"the agent's work cannot be copied: {error}") from error
