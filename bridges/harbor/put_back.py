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

from vf.bridges.harbor.container import Spoilt, as_root, fetch, spoiling
from vf.bridges.harbor.links import links_to_theirs
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
MOST_NAMES = 2**20  # bytes of a list of hosts
NAMES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")  # each container has its own
# What the engine makes for each container, and mounts.
ENGINES = ("/.dockerenv", "/dev", "/proc", "/sys", "/tmp", *NAMES, "/etc/mtab", "/logs")
_NAMED = 50  # paths that a trace names
Fresh = Callable[[], AbstractAsyncContextManager[Sandbox]]


async def read_names(sandbox: Sandbox) -> dict[str, bytes | None]:
    """Return the files that say what hosts are called, of a container; None where there is none.

    Raises:
        Spoilt: One cannot be read.
        SandboxError: The container is lost.
    """
    return {path: await fetch(sandbox, path, MOST_NAMES) for path in NAMES}


async def put_back(
    sandbox: Sandbox,
    fresh: Fresh,
    known: Known,
    kept: Collection[str],
    names: Mapping[str, bytes | None],
    max_bytes: int,
    in_memory: Collection[str] | None,
) -> dict[str, Any]:
    """Put a container back, and return what was done, as a trace records it.

    Args:
        sandbox: The container, an :class:`~vf.sandbox.audit.Auditable`.
        fresh: Opens another like it, unused.
        known: What is known of its image; its files are, from then on.
        kept: What stays as the agent left it.
        names: What :func:`read_names` returned before the agent ran.
        max_bytes: Bytes that a copy of what is missing may have on this machine.
        in_memory: File systems in memory, which are emptied; None if programs keep running.

    Raises:
        Spoilt: It cannot be put back.
        SandboxError: A container is lost.
    """
    assert isinstance(sandbox, Auditable)
    aside = (*kept, *ENGINES)
    with spoiling("the container cannot be put back", *NO_TREE):
        if known.tree is None:
            async with _at_rest(fresh) as clean:
                known.tree = await _survey(clean)
        wanted = _outside(aside, known.tree)
        found = await _survey(sandbox)
        gone, missing = differences(_outside(aside, found), wanted)
        gone |= _links(found, kept, known.tree)
        left, lacking = gone, missing
        if gone:
            await sandbox.remove(gone)
        if missing:
            wanted |= await _restore(sandbox, fresh, missing, max_bytes)
        if in_memory is not None:  # a library that the agent preloads may have started some
            await sandbox.end_programs()
        if gone or missing:
            found = await _survey(sandbox)
            left, lacking = differences(_outside(aside, found), wanted)
            left |= _links(found, kept, known.tree)
    undone = left | lacking.keys() if gone or missing else set()
    if in_memory is None:  # what runs may write
        undone &= gone | missing.keys()
    if undone:
        raise Spoilt(f"the container cannot be put back: {min(undone)!r} stays as the agent has it")
    await _empty(sandbox, in_memory or (), kept)
    renamed = await _put_back_names(sandbox, names)  # by the image's own programs, as of now
    added = [path for path in gone if path not in wanted]
    done = {"put_back": [*missing, *renamed], "removed": added}
    return {name: named(paths) for name, paths in done.items() if paths}


def named(paths: Collection[str]) -> list[str]:
    """Return paths as a trace records them: in order, as text, and not too many."""
    shown = [path.encode("utf-8", "replace").decode() for path in sorted(paths)[:_NAMED]]
    return shown + [f"and {len(paths) - _NAMED} more"] * (len(paths) > _NAMED)


async def _empty(sandbox: Sandbox, folders: Collection[str], kept: Collection[str]) -> None:
    """Remove what is in file systems in memory, without those that have a part of the work.

    Raises:
        Spoilt: Something stays.
        SandboxError: The container is lost.
    """
    assert isinstance(sandbox, Auditable)
    emptied = {path for path in folders if not within(path, kept)}
    emptied = {path for path in emptied if not any(within(each, [path]) for each in kept)}
    with spoiling("the container cannot be put back"):
        await sandbox.remove(emptied)
    looks = (f'[ -z "$(ls -A {shlex.quote(path)} 2>/dev/null)" ]' for path in sorted(emptied))
    await as_root(sandbox, " && ".join(["true", *looks]))


def _outside(folders: Collection[str], tree: Tree) -> Tree:
    return {path: entry for path, entry in tree.items() if not within(path, folders)}


def _links(found: Tree, kept: Collection[str], clean: Tree) -> set[str]:
    """Return the links in the work that the tests must not follow, unless they are the image's."""
    links = links_to_theirs(found)
    return {path for path in links if within(path, kept) and clean.get(path) != found[path]}


async def _put_back_names(sandbox: Sandbox, names: Mapping[str, bytes | None]) -> list[str]:
    """Write what hosts are called as it was, and return which files were changed.

    Where the engine has mounted one, it can only be written in place.
    """
    changed = []
    for path, content in names.items():
        try:
            same = await fetch(sandbox, path, MOST_NAMES) == content
        except Spoilt:
            same = False
        if not same:
            changed.append(path)
        line = f"rm -rf {path}"  # also where it is the same: it may be a link
        if content is not None:
            owned = f"chown 0:0 {path} && chmod 644 {path}"
            line += f"; if [ -e {path} ]; then {owned}; fi && cat > {path}"
        await as_root(sandbox, line, content)
        if await fetch(sandbox, path, MOST_NAMES) != content:
            raise Spoilt(f"the container cannot be put back: {path!r} stays as the agent has it")
    return changed


async def _survey(sandbox: Auditable) -> Tree:
    return await sandbox.read_tree("/", partial(read_pieces, under="", max_bytes=MOST))


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
            found = await clean.read_tree("/", partial(_pick, archive, missing, max_bytes))
        archive.seek(0)
        await sandbox.write_tree(archive)
    return found


def _pick(archive: BinaryIO, wanted: Tree, max_bytes: int, pieces: Iterator[bytes]) -> Tree:
    """Write some of an archive's entries as another. Blocks.

    Raises:
        ValueError: They have too many bytes.
    """
    with reading_pieces(pieces, MOST) as source, writing(archive) as to:
        return copy_tree(source, to, selected=wanted.__contains__, max_bytes=max_bytes)
