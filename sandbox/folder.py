"""A folder as one stream of records: packed on one side, unpacked on the other.

A record is a kind, a mode, the lengths of a name and of data, the name, the data. Folders nest: an
ENTER is followed by what is in it, then by a LEAVE. Names have no slash, so no record can name
anything outside the folder that is being unpacked. The first piece of a file comes with its record,
the others follow.

This file runs on both sides: the client sends its source to the supervisor when it starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from typing import Collection, Iterator  # noqa: UP035  (Python 3.9 runs this too)

ENTER, LEAVE, FILE, MORE, LINK = b"d", b"u", b"f", b"m", b"l"
RECORD = struct.Struct(">cIHI")
ENTRY = 512  # bytes that every name counts: more than a record without its data has
DEEPEST = 100  # folders in each other
PIECE = 2**18
LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
# Errors of a name that is being changed while it is read.
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL)
# Errors of a name that this file system cannot have.
NO_NAME = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)


class Pack:
    """The records of a folder's content, while they are read. Blocks.

    Args:
        folder: The folder.
        leave_out: Names that are left out, at any depth.
        max_bytes: The limit on the total size of the records.
        strict: Whether the folder is the caller's own: an entry that cannot be copied, and a link
            that leads out of the folder, is then an error. Otherwise it is left out, as are entries
            that vanish meanwhile.
    """

    def __init__(
        self, folder: str, leave_out: Collection[str], max_bytes: int, *, strict: bool
    ) -> None:
        self._folder, self._max_bytes, self._left = folder, max_bytes, max_bytes
        self._leave_out = {name.encode("utf-8", "surrogateescape") for name in leave_out}
        self._strict = strict
        self.path = ""  # of the entry being read, below the folder

    def __iter__(self) -> Iterator[bytes]:
        """Yield the records.

        Raises:
            OSError: If the folder, or something in it, cannot be read.
            ValueError: If it has more than ``max_bytes``, is too deep, or, if ``strict``, holds
                something that cannot be copied.
        """
        root = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield from self._content(root, "", 0)
        finally:
            os.close(root)

    def _content(self, folder: int, path: str, depth: int) -> Iterator[bytes]:
        if depth > DEEPEST:
            raise ValueError(f"{path} is more than {DEEPEST} folders deep")
        for name in self._names(folder, path):
            try:
                yield from self._entry(folder, name, os.path.join(path, name), depth)
            except OSError as error:
                if self._strict or error.errno not in GONE:
                    raise

    def _names(self, folder: int, path: str) -> list[str]:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if os.fsencode(entry.name) not in self._leave_out:
                    self._spend(ENTRY, os.path.join(path, entry.name))
                    names.append(entry.name)
        return sorted(names)

    def _entry(self, folder: int, name: str, path: str, depth: int) -> Iterator[bytes]:
        self.path = path
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            inner = os.open(name, LOOK | os.O_DIRECTORY, dir_fd=folder)
            try:
                yield record(ENTER, info.st_mode, name)
                yield from self._content(inner, path, depth + 1)
                yield record(LEAVE)
            finally:
                os.close(inner)
        elif stat.S_ISREG(info.st_mode):
            yield from self._file(folder, name, path)
        elif stat.S_ISLNK(info.st_mode):
            target = os.readlink(name, dir_fd=folder)
            if self._strict and leads_out(target, depth):
                raise ValueError(f"{path} is a symbolic link that leads out of {self._folder}")
            self._spend(len(target), path)
            yield record(LINK, 0, name, os.fsencode(target))
        elif self._strict:
            raise ValueError(f"{path} is neither a file, a folder nor a symbolic link")

    def _file(self, folder: int, name: str, path: str) -> Iterator[bytes]:
        # Meanwhile it may have become a FIFO, whose open would wait for a writer.
        file = os.open(name, LOOK | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
        try:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                return
            self._spend(info.st_size, path, deduct=False)
            head = record(FILE, info.st_mode, name)
            while data := os.read(file, PIECE):
                self._spend(RECORD.size + len(data), path)
                if head:
                    yield record(FILE, info.st_mode, name, data)
                    head = b""
                else:
                    yield record(MORE, 0, "", data)
            if head:
                yield head
        finally:
            os.close(file)

    def _spend(self, count: int, path: str, *, deduct: bool = True) -> None:
        if count > self._left:
            raise ValueError(
                f"{self._folder} has more than max_bytes = {self._max_bytes} bytes, up to {path}: "
                "name what is not needed in leave_out, or raise max_bytes"
            )
        self._left -= count if deduct else 0


class Unpack:
    """Unpacks records into a folder.

    Args:
        folder: The folder that gets the content; made if need be.
        foreign: Whether the records come from an untrusted source. Then no link below the folder is
            followed, none is made that could lead out of it, modes give only the owner the right to
            write, and names that this file system refuses are left out.

    Raises:
        OSError: If the folder cannot be made.
    """

    def __init__(self, folder: str, *, foreign: bool) -> None:
        os.makedirs(folder, exist_ok=True)
        self._foreign = foreign
        self._file, self._mode = -1, 0
        # Each folder's descriptor, and the mode that it gets in the end: None if it existed before.
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folders: list[tuple[int, int | None]] = [(root, None)]
        self._skipped = 0  # folders in which nothing is made
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            OSError: If something cannot be made.
            ValueError: If they are not records.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= RECORD.size:
            kind, mode, name, size = RECORD.unpack_from(buffer, at)
            start = at + RECORD.size
            if size > PIECE:
                raise ValueError(f"a record of {size} bytes is too large")
            if len(buffer) < start + name + size:
                break
            at = start + name + size
            text = os.fsdecode(bytes(buffer[start : start + name]))
            self._take(kind, mode, text, bytes(buffer[start + name : at]))
        del buffer[:at]

    def finish(self) -> None:
        """Check that all records have come.

        Raises:
            ValueError: If not all of it came.
        """
        self._end_file()
        if self._buffer or self._skipped or len(self._folders) > 1:
            raise ValueError("not all of the folder came")

    def close(self) -> None:
        """Close every descriptor."""
        if self._file >= 0:
            os.close(self._file)
        for folder, _ in self._folders:
            os.close(folder)

    def _take(self, kind: bytes, mode: int, name: str, data: bytes) -> None:
        if kind == MORE:
            if self._file >= 0:
                write_all(self._file, data)
            return
        self._end_file()
        if kind == LEAVE:
            self._leave()
        elif not name or "/" in name or "\0" in name or name in (".", ".."):
            raise ValueError(f"{name!r} is not a name")
        elif self._skipped:
            self._skipped += kind == ENTER
        else:
            try:
                self._make(kind, mode, name, data)
            except OSError as error:
                if not self._foreign or error.errno not in NO_NAME:
                    raise
                self._skipped += kind == ENTER

    def _make(self, kind: bytes, mode: int, name: str, data: bytes) -> None:
        folder = self._folders[-1][0]
        if kind == ENTER:
            self._enter(folder, mode, name)
        elif kind == FILE:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file, self._mode = os.open(name, flags, 0o600, dir_fd=folder), mode
            write_all(self._file, data)
        elif kind == LINK:
            target = os.fsdecode(data)
            if not self._foreign or stays_within(target, len(self._folders) - 1):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                os.symlink(target, name, dir_fd=folder)
        else:
            raise ValueError(f"there is no record {kind!r}")

    def _enter(self, folder: int, mode: int, name: str) -> None:
        if len(self._folders) > DEEPEST:
            raise ValueError(f"{name} is more than {DEEPEST} folders deep")
        later: int | None = mode
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            later = None
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        flags |= os.O_NOFOLLOW if self._foreign else 0
        self._folders.append((os.open(name, flags, dir_fd=folder), later))

    def _leave(self) -> None:
        if self._skipped:
            self._skipped -= 1
            return
        if len(self._folders) == 1:
            raise ValueError("a folder is left that was not entered")
        folder, mode = self._folders.pop()
        try:
            if mode is not None:
                os.fchmod(folder, (mode & 0o755) | 0o700 if self._foreign else mode & 0o777)
        finally:
            os.close(folder)

    def _end_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            try:
                os.fchmod(
                    file, (self._mode & 0o755) | 0o600 if self._foreign else self._mode & 0o777
                )
            finally:
                os.close(file)


def pack(folder: str | os.PathLike[str], leave_out: Collection[str], max_bytes: int) -> bytes:
    """Return the records of the caller's own folder. Blocks.

    Raises:
        NotADirectoryError: If it is not a directory.
        ValueError: If it has more than ``max_bytes``, holds something that is neither a file, a
            folder nor a symbolic link, or a link that leads out of it.
        OSError: If it cannot be read.
    """
    root = os.path.realpath(folder)
    if not os.path.isdir(root):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))
    return b"".join(Pack(root, leave_out, max_bytes, strict=True))


def record(kind: bytes, mode: int = 0, name: str = "", data: bytes = b"") -> bytes:
    """Return the bytes of a record."""
    text = os.fsencode(name)
    return RECORD.pack(kind, stat.S_IMODE(mode), len(text), len(data)) + text + data


def leads_out(target: str, depth: int) -> bool:
    """Return whether a link that is ``depth`` folders deep leads out of its tree."""
    if target.startswith("/"):
        return True
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def stays_within(target: str, depth: int) -> bool:
    """Return whether a link stays within its tree, whatever links there are beside it.

    The path after a name may be relative to the target of a link with that name. So a target may go
    up only before it goes down.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((n for n, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and ".." not in parts[ups:] and ups <= depth


def write_all(file: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
