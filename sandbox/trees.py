"""File trees as the engine's tar archives: read, compared and rewritten.

Paths are absolute. What is not UTF-8 in them is kept, as ``os.fsdecode`` does.
"""

from __future__ import annotations

import hashlib
import io
import math
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import IO, BinaryIO, NamedTuple

PIECE = 2**20
BUFFER = 2**15
MOST_ENTRIES = 300_000
MOST_LINKED = 2**30  # bytes of links that become files
# Without devices, which nothing in a sandbox can make.
KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE)


class Entry(NamedTuple):
    """A file, folder or link in a tree. Times do not count.

    Attributes:
        kind: The type in ``tarfile``; a hard link is the file that it leads to.
        mode: Permissions.
        uid: Its owner.
        gid: Its group.
        content: The digest of a file's content, or a symbolic link's target.
    """

    kind: bytes
    mode: int
    uid: int
    gid: int
    content: str


Tree = dict[str, Entry]


def everything(path: str) -> bool:
    """Select every path."""
    return True


def within(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of these or below one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def above(path: str) -> Iterator[str]:
    """Yield the folders that a path is in, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


def topmost(paths: Collection[str]) -> set[str]:
    """Return the paths that are not below another."""
    every = set(paths)
    return {path for path in every if not any(parent in every for parent in above(path))}


class Pieces(io.RawIOBase):
    """A file that is read from pieces.

    Args:
        pieces: The content, in pieces.
        max_bytes: The limit on its size.
    """

    def __init__(self, pieces: Iterable[bytes], max_bytes: int) -> None:
        self._pieces, self._rest, self._left = iter(pieces), b"", max_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read the rest of a piece, or the next one.

        Raises:
            ValueError: If there are more than ``max_bytes``.
        """
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
            self._left -= len(piece)
            if self._left < 0:
                raise ValueError("the files have more bytes than may be copied")
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def reading_pieces(pieces: Iterator[bytes], max_bytes: int) -> tarfile.TarFile:
    """Open an archive that comes in pieces."""
    file = io.BufferedReader(Pieces(pieces, max_bytes), PIECE)
    # tarfile copies what is left of its buffer at every read.
    return tarfile.open(fileobj=file, mode="r|", bufsize=BUFFER, encoding="utf-8")


def reading(file: BinaryIO) -> tarfile.TarFile:
    """Open an archive that is in a file."""
    return tarfile.open(fileobj=file, mode="r:", encoding="utf-8")


def writing(file: BinaryIO) -> tarfile.TarFile:
    """Make an archive in a file."""
    return tarfile.open(fileobj=file, mode="w:", encoding="utf-8")


def read_pieces(pieces: Iterator[bytes], *, under: str, max_bytes: int) -> Tree:
    """Return the tree of an archive that comes in pieces; see :func:`copy_tree`."""
    with reading_pieces(pieces, max_bytes) as source:
        return copy_tree(source, under=under)


def copy_tree(
    source: tarfile.TarFile,
    to: tarfile.TarFile | None = None,
    *,
    under: str = "",
    selected: Callable[[str], bool] = everything,
    whole: bool = False,
    max_bytes: float = math.inf,
) -> Tree:
    """Read an archive, and copy selected paths of it to another.

    No entry of the copy is behind a link, or twice at the same path, so that unpacking it writes to
    no other place.

    Args:
        source: The archive.
        to: The archive to write; None to copy nothing.
        under: The folder that its paths are relative to; empty for the root.
        selected: A predicate of the paths to copy and return.
        whole: Whether hard links to files that are not selected become files. The archive must be
            seekable. Otherwise these files must exist where the copy is unpacked.
        max_bytes: Bytes that the copied files may have together.

    Returns:
        The selected entries, by path.

    Raises:
        ValueError: If it has too many entries or bytes, or is not a file tree.
        tarfile.TarError: If it is not an archive.
    """
    tree: Tree = {}
    count = linked = copied = 0
    for member in source:
        count += 1
        if count > MOST_ENTRIES:
            raise ValueError(f"there are more than {MOST_ENTRIES} files and folders")
        path = _path(under, member.name)
        if not path or (member.type not in KINDS and not member.islnk()):
            continue
        parent = path.rpartition("/")[0]
        if path in tree or (parent in tree and not tree[parent].kind == tarfile.DIRTYPE):
            raise ValueError(f"{path!r} is not a path in a file tree")
        if tree and parent != under and parent not in tree:
            raise ValueError(f"{path!r} is in a folder that is not there")
        target = _path(under, member.linkname) if member.islnk() else ""
        copy = to if selected(path) else None
        if target and not (whole and copy is not None and not selected(target)):
            if target not in tree or tree[target].kind != tarfile.REGTYPE:
                raise ValueError(f"{path!r} is linked to something that is not a file")
            tree[path] = tree[target]
            if copy is not None:
                _add(copy, member, path, None, linkname=target.lstrip("/"))
            continue
        data = _Hashed(source.extractfile(member)) if member.isreg() or target else None
        if target:  # the file that it leads to is not selected itself
            member.type, member.size = tarfile.REGTYPE, source.getmember(member.linkname).size
            linked += member.size
            if linked > MOST_LINKED:
                raise ValueError(f"there are hard links to more than {MOST_LINKED} bytes")
        if copy is not None:
            copied += member.size
            if copied > max_bytes:
                raise ValueError(f"the files have more than {max_bytes} bytes")
            _add(copy, member, path, data, linkname=member.linkname if member.issym() else "")
        content = data.digest() if data is not None else member.linkname
        mode = 0o777 if member.issym() else member.mode
        tree[path] = Entry(member.type, mode, member.uid, member.gid, content)
    return {path: entry for path, entry in tree.items() if selected(path)}


def differences(current: Mapping[str, Entry], target: Mapping[str, Entry]) -> tuple[set[str], Tree]:
    """Return the paths to remove, and the entries to add, to turn a tree into another.

    Only the topmost paths are removed. The entries to add include all that was below them.
    """
    gone = {
        path
        for path, entry in current.items()
        if path not in target
        or (entry != target[path] and {entry.kind, target[path].kind} != {tarfile.DIRTYPE})
    }
    gone = topmost(gone)
    missing = {
        path: entry
        for path, entry in target.items()
        if current.get(path) != entry or any(parent in gone for parent in above(path))
    }
    return gone, missing


def _path(under: str, name: str) -> str:
    """Return an entry's path; empty for the root itself.

    Raises:
        ValueError: If it leads elsewhere.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is not a path in a file tree")
    return "/".join([under, *parts]) if parts else ""


def _add(
    to: tarfile.TarFile, member: tarfile.TarInfo, path: str, data: _Hashed | None, *, linkname: str
) -> None:
    # A new one: a member's extended headers would come before what is set here.
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type, info.mode, info.mtime = member.type, member.mode, member.mtime
    info.uid, info.gid, info.size = member.uid, member.gid, member.size if data else 0
    info.linkname = linkname
    to.addfile(info, data)


class _Hashed:
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes] | None) -> None:
        assert file is not None
        self._file = file
        self._hash = hashlib.blake2b(digest_size=20)

    def read(self, size: int = PIECE) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        while self.read():
            pass
        return self._hash.hexdigest()
