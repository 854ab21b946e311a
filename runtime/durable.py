"""Writing files so that they outlast a loss of power."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append_lines(file: Path, lines: Iterable[bytes]) -> None:
    """Append lines, given without their ends, and wait until they are on the disk."""
    with file.open("ab") as out:
        out.writelines(line + b"\n" for line in lines)
        out.flush()
        os.fsync(out.fileno())
