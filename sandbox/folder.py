"""A folder as one piece of bytes: packed on this machine, unpacked in a sandbox."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

# Run inside, with the directory as its argument and the archive as its standard input.
UNPACK = """
import os, sys, tarfile
safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
try:
    os.makedirs(sys.argv[1], exist_ok=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        archive.extractall(sys.argv[1], **safe)
except OSError as error:
    print(error.errno or 5)
    sys.exit(3)
"""
UNPACK_FAILED = 3


def pack(folder: str | os.PathLike[str], leave_out: Collection[str], max_bytes: int) -> bytes:
    """Return the content of a folder as a tar archive. Blocks.

    Raises:
        NotADirectoryError: It is not a directory.
        ValueError: It has more than ``max_bytes``, holds something that is neither a file, a
            folder nor a symbolic link, or a link that leads out of it.
        OSError: It cannot be read.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in _walk(root, frozenset(leave_out)):
            member = archive.gettarinfo(path, str(path.relative_to(root)))
            if member is None:
                raise ValueError(f"{path} is a socket, which cannot be copied")
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                raise ValueError(f"{path} is neither a file, a folder nor a symbolic link")
            if member.issym() and _leads_out(path, root):
                raise ValueError(f"{path} is a symbolic link that leads out of {root}")
            if data.tell() + member.size > max_bytes:
                raise ValueError(
                    f"{root} has more than max_bytes = {max_bytes} bytes, up to {path}: name what "
                    "is not needed in leave_out, or raise max_bytes"
                )
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    return data.getvalue()


def _walk(root: Path, leave_out: frozenset[str]) -> Iterator[Path]:
    """Yield every path below a folder, each after the folder that it is in."""
    for place, folders, files in os.walk(root, onerror=_raise):
        folders[:] = sorted(set(folders) - leave_out)
        for name in sorted({*folders, *files} - leave_out):
            yield Path(place, name)


def _leads_out(path: Path, root: Path) -> bool:
    return path.readlink().is_absolute() or not path.resolve().is_relative_to(root)


def _raise(error: OSError) -> None:
    raise error
