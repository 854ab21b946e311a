"""Putting a container back, where the tests need the agent's own: by the content of its files.

Everything but the work and what the task keeps becomes what it is in an unused container. Both are
read by the engine, whole, and compared by content; what was added is removed, by the bytes of its
name; and what had to be undone is then looked at again.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, BinaryIO

from vf.bridges.harbor.container import Spoilt, spoiling
from vf.bridges.harbor.seen import NO_TREE, Known
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

MOST = 64 * 2**30  # bytes of a container's files
# What the engine makes for each container, and mounts.
ENGINES = (
    *("/.dockerenv", "/dev", "/proc", "/sys", "/tmp"),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab"),
    "/logs",
)
_NAMED = 50  # paths that a trace names
Fresh = Callable[[], AbstractAsyncContextManager[Sandbox]]


async def put_back(
    sandbox: Auditable,
    fresh: Fresh,
    known: Known,
    kept: Collection[str],
) -> dict[str, Any]:
    """Put a container back, and return what was done, as a trace records it.

    Args:
        sandbox: The container.
        fresh: Opens another like it, unused.
        known: What is known of its image; its files are, from then on.
        kept: What stays as the agent left it.

    Raises:
        Spoilt: It cannot be put back.
        SandboxError: A container is lost.
    """
    aside = (*kept, *ENGINES)
    with spoiling("the container cannot be put back", *NO_TREE):
        if known.tree is None:
            async with _at_rest(fresh) as clean:
                known.tree = await _survey(clean)
        wanted = {path: entry for path, entry in known.tree.items() if not within(path, aside)}
        gone, missing = differences(await _survey(sandbox, aside), wanted)
        if not gone and not missing:
            return {}
        if gone:
            await sandbox.remove(gone)
        if missing:
            wanted |= await _restore(sandbox, fresh, missing)
        left, lacking = differences(await _survey(sandbox, aside), wanted)
    if undone := (left & gone) | (lacking.keys() & missing.keys()):
        raise Spoilt(f"the container cannot be put back: {min(undone)!r} stays as the agent has it")
    added = sorted(path for path in gone if path not in wanted)
    return {
        name: [path.encode("utf-8", "replace").decode() for path in paths[:_NAMED]]
        + [f"and {len(paths) - _NAMED} more"] * (len(paths) > _NAMED)
        for name, paths in {"put_back": sorted(missing), "removed": added}.items()
        if paths
    }


async def _survey(sandbox: Auditable, aside: Collection[str] = ()) -> Tree:
    found = await sandbox.read_tree("/", partial(read_pieces, under="", max_bytes=MOST))
    return {path: entry for path, entry in found.items() if not within(path, aside)}


@asynccontextmanager
async def _at_rest(fresh: Fresh) -> AsyncIterator[Auditable]:
    """Open an unused container, in which nothing runs."""
    async with fresh() as clean:
        assert isinstance(clean, Auditable)
        await clean.end_programs()
        yield clean


async def _restore(sandbox: Auditable, fresh: Fresh, missing: Tree) -> Tree:
    """Copy what is missing from an unused container, and return what that has there."""
    with tempfile.TemporaryFile() as archive:
        async with _at_rest(fresh) as clean:
            found = await clean.read_tree("/", partial(_pick, archive, missing))
        archive.seek(0)
        await sandbox.write_tree(archive)
    return found


def _pick(archive: BinaryIO, wanted: Collection[str], pieces: Iterator[bytes]) -> Tree:
    """Write some of an archive's entries as another. Blocks."""
    with reading_pieces(pieces, MOST) as source, writing(archive) as to:
        return copy_tree(source, to, wanted=wanted.__contains__)
