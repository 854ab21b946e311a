"""Putting a container back, where the tests need the agent's own: by the content of its files.

Everything but the work and what the task keeps becomes what it is in an unused container. Both are
read by the engine, whole, and compared by content; what was added is removed, by the bytes of its
name; and what had to be undone is then looked at again. The names of hosts, which the engine mounts
in each container, become what they were before the agent. Unless programs keep running, who may use
them, what is in memory is removed, as in ``/tmp``; nothing can be written in ``/dev`` itself.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, BinaryIO

from vf.bridges.harbor.container import Unverifiable, as_root, as_unverifiable, fetch
from vf.bridges.harbor.links import links_to_tests
from vf.bridges.harbor.work import NO_TREE, ImageFacts
from vf.sandbox.audit import Auditable
from vf.sandbox.contract import Sandbox
from vf.sandbox.trees import (
    Tree,
    copy_tree,
    differences,
    read_pieces,
    reading_pieces,
    within,
    writing,
)

MAX_BYTES = 64 * 2**30  # bytes of a container's files
MAX_NAMES_BYTES = 2**20  # bytes of a list of hosts
NAMES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")  # each container has its own
# What the engine makes for each container, and mounts.
ENGINE_PATHS = ("/.dockerenv", "/dev", "/proc", "/sys", "/tmp", *NAMES, "/etc/mtab", "/logs")
_MAX_TRACE_PATHS = 50  # paths that a trace names
Fresh = Callable[[], AbstractAsyncContextManager[Sandbox]]


async def read_names(sandbox: Sandbox) -> dict[str, bytes | None]:
    """Return a container's files with names of hosts; None for each that does not exist.

    Raises:
        Unverifiable: If a file cannot be read.
        SandboxError: If the container is lost.
    """
    return {path: await fetch(sandbox, path, MAX_NAMES_BYTES) for path in NAMES}


async def put_back(
    sandbox: Sandbox,
    fresh: Fresh,
    image: ImageFacts,
    kept: Collection[str],
    names: Mapping[str, bytes | None],
    max_bytes: int,
    in_memory: Collection[str] | None,
) -> dict[str, Any]:
    """Put a container back, and return what was done, as a trace records it.

    Args:
        sandbox: Container to restore, an :class:`~vf.sandbox.audit.Auditable`.
        fresh: Opens another like it, unused.
        image: Facts about its image; they include its files from then on.
        kept: Paths that stay as the agent left them.
        names: Result of :func:`read_names` before the agent ran.
        max_bytes: Maximum bytes on this machine of a copy of the missing files.
        in_memory: File systems in memory to empty; None if programs keep running.

    Raises:
        Unverifiable: If the container cannot be restored.
        SandboxError: If a container is lost.
    """
    assert isinstance(sandbox, Auditable)
    ignored = (*kept, *ENGINE_PATHS)
    with as_unverifiable("the container cannot be put back", *NO_TREE):
        if image.tree is None:
            async with _at_rest(fresh) as clean:
                image.tree = await _survey(clean)
        clean_tree = _without(ignored, image.tree)
        tree = await _survey(sandbox)
        extra, missing = differences(_without(ignored, tree), clean_tree)
        extra |= _links_to_tests(tree, kept, image.tree)
        still_extra, still_missing = extra, missing
        if extra:
            await sandbox.remove(extra)
        if missing:
            clean_tree |= await _restore(sandbox, fresh, missing, max_bytes)
        if in_memory is not None:  # a library that the agent preloads may have started some
            await sandbox.end_programs()
        if extra or missing:
            tree = await _survey(sandbox)
            still_extra, still_missing = differences(_without(ignored, tree), clean_tree)
            still_extra |= _links_to_tests(tree, kept, image.tree)
    undone = still_extra | still_missing.keys() if extra or missing else set()
    if in_memory is None:  # what runs may write
        undone &= extra | missing.keys()
    if undone:
        raise Unverifiable(
            f"the container cannot be put back: {min(undone)!r} stays as the agent has it"
        )
    await _empty_folders(sandbox, in_memory or (), kept)
    renamed = await _put_back_names(sandbox, names)  # by the image's own programs, as of now
    added = [path for path in extra if path not in clean_tree]
    changes = {"put_back": [*missing, *renamed], "removed": added}
    return {name: trace_paths(paths) for name, paths in changes.items() if paths}


def trace_paths(paths: Collection[str]) -> list[str]:
    """Return paths as a trace records them: in order, as text, and not too many."""
    shown = [path.encode("utf-8", "replace").decode() for path in sorted(paths)[:_MAX_TRACE_PATHS]]
    return shown + [f"and {len(paths) - _MAX_TRACE_PATHS} more"] * (len(paths) > _MAX_TRACE_PATHS)


async def _empty_folders(sandbox: Sandbox, folders: Collection[str], kept: Collection[str]) -> None:
    """Remove what is in file systems in memory, without those that have a part of the work.

    Raises:
        Unverifiable: If some of it cannot be removed.
        SandboxError: If the container is lost.
    """
    assert isinstance(sandbox, Auditable)
    selected = {
        folder
        for folder in folders
        if not within(folder, kept) and not any(within(path, [folder]) for path in kept)
    }
    with as_unverifiable("the container cannot be put back"):
        await sandbox.remove(selected)
    checks = (f'[ -z "$(ls -A {shlex.quote(path)} 2>/dev/null)" ]' for path in sorted(selected))
    await as_root(sandbox, " && ".join(["true", *checks]))


def _without(folders: Collection[str], tree: Tree) -> Tree:
    return {path: entry for path, entry in tree.items() if not within(path, folders)}


def _links_to_tests(tree: Tree, kept: Collection[str], clean: Tree) -> set[str]:
    """Return the links in the work that the tests must not follow, unless they are the image's."""
    links = links_to_tests(tree)
    return {path for path in links if within(path, kept) and clean.get(path) != tree[path]}


async def _put_back_names(sandbox: Sandbox, names: Mapping[str, bytes | None]) -> list[str]:
    """Write what hosts are called as it was, and return which files were changed.

    Where the engine has mounted one, it can only be written in place.
    """
    changed = []
    for path, content in names.items():
        try:
            same = await fetch(sandbox, path, MAX_NAMES_BYTES) == content
        except Unverifiable:
            same = False
        if not same:
            changed.append(path)
        line = f"rm -rf {path}"  # also where it is the same: it may be a link
        if content is not None:
            owned = f"chown 0:0 {path} && chmod 644 {path}"
            line += f"; if [ -e {path} ]; then {owned}; fi && cat > {path}"
        await as_root(sandbox, line, content)
        if await fetch(sandbox, path, MAX_NAMES_BYTES) != content:
            raise Unverifiable(
                f"the container cannot be put back: {path!r} stays as the agent has it"
            )
    return changed


async def _survey(sandbox: Auditable) -> Tree:
    return await sandbox.read_tree("/", partial(read_pieces, under="", max_bytes=MAX_BYTES))


@asynccontextmanager
async def _at_rest(fresh: Fresh) -> AsyncIterator[Auditable]:
    """Open an unused container, in which nothing runs."""
    async with fresh() as clean:
        assert isinstance(clean, Auditable)
        await clean.end_programs()
        yield clean


async def _restore(sandbox: Auditable, fresh: Fresh, missing: Tree, max_bytes: int) -> Tree:
    """Copy what is missing from an unused container, and return what that has there."""
    with tempfile.TemporaryFile() as archive:
        async with _at_rest(fresh) as clean:
            restored = await clean.read_tree(
                "/", partial(_copy_entries, archive, missing, max_bytes)
            )
        archive.seek(0)
        await sandbox.write_tree(archive)
    return restored


def _copy_entries(
    archive: BinaryIO, selected: Tree, max_bytes: int, pieces: Iterator[bytes]
) -> Tree:
    """Write some of an archive's entries as another. Blocks.

    Raises:
        ValueError: If the entries have more than ``max_bytes``.
    """
    with reading_pieces(pieces, MAX_BYTES) as source, writing(archive) as target:
        return copy_tree(source, target, selected=selected.__contains__, max_bytes=max_bytes)
