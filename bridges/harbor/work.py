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

from vf.bridges.harbor.container import ROOT, Unverifiable, as_root, as_unverifiable
from vf.bridges.harbor.links import links_to_tests
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

MAX_BYTES = 4 * 2**30  # bytes of the work, where its container may have more
MAX_SINGLE_PATHS = 8  # paths that are read again one by one
APP = "/app"  # the format's own work folder
LOGS = "/logs"  # without the tests' own
NO_TREE = (ValueError, tarfile.TarError)  # what an archive raises that is no tree of files
IN_MEMORY = ("/tmp", "/dev/shm", "/dev/mqueue")  # the engine does not see what is there


T = TypeVar("T")


@dataclass(slots=True)
class ImageFacts:
    """Facts about an image that an unused container of it shows.

    Attributes:
        workdir: Working directory; empty where it is ``/``.
        homes: Home folders of the users that run tests.
        visible: Whether the engine sees what is written in the container.
        tree: Files of the image; None until they are needed.
    """

    workdir: str
    homes: Mapping[str, str] = field(default_factory=dict)
    visible: bool = True
    tree: Tree | None = None


async def inspect_image(sandbox: Sandbox, users: Collection[str]) -> ImageFacts:
    """Look up what has to be known of an image, in a container that no agent has used.

    Raises:
        Unverifiable: If the shell of the image does not work.
        SandboxError: If the container is lost.
    """
    workdir = (await sandbox.exec(["/bin/sh", "-c", "pwd -P"])).stdout.strip()
    homes = {}
    for user in users:
        result = await sandbox.exec(["/bin/sh", "-c", 'printf %s "$HOME"'], user=user, cwd="/")
        homes[user] = result.stdout
    visible = isinstance(sandbox, Auditable) and not within(workdir, IN_MEMORY)
    if isinstance(sandbox, Auditable) and visible:
        mark = f"/logs/.vf-{secrets.token_hex(8)}"
        await as_root(sandbox, f": > {mark}")
        try:
            await sandbox.read_tree(mark, lambda pieces: sum(map(len, pieces)))
        except FileNotFoundError:
            visible = False  # not every runtime lets its engine see what is written
        await as_root(sandbox, f"rm {mark}")
    return ImageFacts("" if workdir == "/" else workdir, homes, visible)


def artifact_sources(part: Part) -> list[str]:
    """Return what a part keeps beside its work, of the agent's own container."""
    return [artifact.source for artifact in part.artifacts if artifact.service in (None, "main")]


def paths_for_tests(part: Part, workdir: str) -> tuple[str, ...]:
    """Return the folders and files of the agent's container that the tests see.

    None is within another, and none is held in memory.
    """
    own = [workdir] if workdir else []
    paths = {
        str(PurePosixPath(workdir or "/", path))
        for path in (*own, APP, LOGS, *artifact_sources(part))
    }
    return tuple(path for path in sorted(topmost(paths)) if not within(path, IN_MEMORY))


class Work:
    """What the tests see of an agent. Used as ``with Work(...) as work``.

    The copies are files of this machine without names: with this process, they are gone.

    Args:
        part: Part of the task.
        image: Facts about the image.
        max_bytes: Maximum bytes of each of the two copies that this machine keeps for a while.
    """

    def __init__(self, part: Part, image: ImageFacts, max_bytes: int) -> None:
        self._max_bytes = min(MAX_BYTES, max_bytes)
        self.paths = paths_for_tests(part, image.workdir)
        home = image.homes.get(part.verifier.user or ROOT, "")
        self._home = home if within(home, self.paths) else ""
        self._artifact_sources = artifact_sources(part)
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
            Unverifiable: If the work is too large, or the container has ended.
            SandboxError: If the container is lost, or this machine fails.
        """
        files, budget = {path: self._file() for path in self.paths}, ByteBudget(self._max_bytes)
        await sandbox.remove([VERIFIER])  # it is not part of the work, and may be very large
        with as_unverifiable("the work cannot be copied for the tests", *NO_TREE):
            entries = await _read_each(
                sandbox, {path: partial(_save, file, budget) for path, file in files.items()}
            )
        self._archives = {path: files[path] for path in entries}

    async def put(self, sandbox: Auditable) -> set[str]:
        """Make it what a container has that nobody has used, and compare.

        Returns:
            Links of the agent's that were left out: see :mod:`vf.bridges.harbor.links`.

        Raises:
            Unverifiable: If the work does not fit, or is not the same there.
            SandboxError: If the container is lost, or this machine fails.
        """
        with as_unverifiable("the work cannot be copied for the tests", *NO_TREE):
            present = await self._read(sandbox, self.paths)
            work: Tree = await in_thread(self._copy)
            links = {path for path in links_to_tests(work) if present.get(path) != work[path]}
            work = {path: entry for path, entry in work.items() if path not in links}
            for path in (self._home, *above(self._home)):
                if path in work and work[path].kind != tarfile.DIRTYPE:
                    raise ValueError(f"{path} is not a folder any more")
            extra, missing = differences(present, work)
            if not extra and not missing:
                return links
            archive = self._file()
            await in_thread(self._copy, archive, missing)
            if extra:
                await sandbox.remove(extra)
            await sandbox.write_tree(archive)
            written = topmost({*extra, *missing})
            if len(written) > MAX_SINGLE_PATHS or not all(
                _can_be_read_alone(path, work) for path in written
            ):
                written = {*self.paths}
            present = await self._read(sandbox, written)
        expected = {path: entry for path, entry in work.items() if within(path, written)}
        for path in present.keys() | expected.keys():
            if present.get(path) != expected.get(path):
                raise Unverifiable(
                    f"the work cannot be copied for the tests: {path!r} is not the same"
                )
        return links

    def _file(self) -> BinaryIO:
        with _this_machine():
            return self._stack.enter_context(tempfile.TemporaryFile())

    def _copy(self, archive: BinaryIO | None = None, selected: Collection[str] = ()) -> Tree:
        """Return all of it, and write what is chosen of it to an archive. Blocks."""
        tree: Tree = {}
        with _this_machine(), ExitStack() as stack:
            target: tarfile.TarFile | None = None
            if archive is not None:
                target = stack.enter_context(writing(archive))
            is_selected = self._is_work if target is None else selected.__contains__
            for path, file in self._archives.items():
                file.seek(0)
                with reading(file) as source:
                    max_bytes = math.inf if target is None else self._max_bytes
                    tree |= copy_tree(
                        source,
                        target,
                        under=_parent(path),
                        selected=is_selected,
                        whole=True,
                        max_bytes=max_bytes,
                    )
        if archive is not None:
            archive.seek(0)
        return tree

    async def _read(self, sandbox: Auditable, paths: Collection[str]) -> Tree:
        """Return what a container has of it at some paths."""
        max_bytes = 2 * MAX_BYTES
        readers = {p: partial(read_pieces, under=_parent(p), max_bytes=max_bytes) for p in paths}
        trees = await _read_each(sandbox, readers)
        entries = (item for tree in trees.values() for item in tree.items())
        return {path: entry for path, entry in entries if self._is_work(path)}

    def _is_work(self, path: str) -> bool:
        hidden = bool(self._home) and path.startswith(f"{self._home}/.")
        return within(path, self._artifact_sources) or not (hidden or within(path, (VERIFIER,)))


def _can_be_read_alone(path: str, tree: Tree) -> bool:
    """Return whether an engine reads a path by itself: its name is UTF-8, and it is not a link.

    Links that lead to each other would be too many for it.
    """
    utf8 = not any("\ud800" <= character <= "\udfff" for character in path)
    return utf8 and (path not in tree or tree[path].kind != tarfile.SYMTYPE)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


async def _read_each(
    sandbox: Auditable, readers: Mapping[str, Callable[[Iterator[bytes]], T]]
) -> dict[str, T]:
    """Read some paths at once, and return what comes of those that are there."""
    reading = (sandbox.read_tree(path, read) for path, read in readers.items())
    results = await asyncio.gather(*reading, return_exceptions=True)  # all of them: they have files
    values: dict[str, T] = {}
    for path, result in zip(readers, results, strict=True):
        if not isinstance(result, BaseException):
            values[path] = result
        elif not isinstance(result, FileNotFoundError):
            raise result
    return values


class ByteBudget:
    """How many bytes may be written to several files that are written at once.

    Args:
        size: Maximum bytes of all files together.
    """

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._lock = threading.Lock()

    def use(self, count: int) -> None:
        """Take some of it.

        Raises:
            ValueError: If fewer bytes are left.
        """
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise ValueError(f"it has more than {self._size} bytes")


def _save(file: BinaryIO, budget: ByteBudget, pieces: Iterator[bytes]) -> None:
    """Write an archive to a file. Blocks.

    Raises:
        ValueError: If the archive is larger than the budget.
    """
    for piece in pieces:
        budget.use(len(piece))
        with _this_machine():
            file.write(piece)


@contextlib.contextmanager
def _this_machine() -> Iterator[None]:
    """Treat an OSError as this machine's.

    Raises:
        SandboxError: If there was an OSError.
    """
    try:
        yield
    except OSError as error:
        raise SandboxError(f"the agent's work cannot be copied: {error}") from error
