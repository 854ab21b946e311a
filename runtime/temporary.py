"""Temporary folders that go with their process, even with one that was killed.

All of a process's lie in one folder with a file that it keeps locked. The next process that makes
one removes those whose lock is free: nobody owns them any more.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_PREFIX, _LOCK = "vf-", "owner.lock"


def make_temporary_folder(name: str, parent: str | os.PathLike[str] | None = None) -> Path:
    """Make a temporary folder; its owner removes it, or the end of this process does.

    Args:
        name: The beginning of its name.
        parent: The folder of all temporary folders of this process; the system's by default.
    """
    own = _own_folder(os.getpid(), os.fspath(parent or tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=own))


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Make a temporary folder, and remove it at the end of the block."""
    folder = make_temporary_folder(name)
    try:
        yield folder
    finally:
        remove_tree(folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder whatever the permissions in it; what cannot be removed stays."""
    for directory, names, _ in os.walk(folder):
        for name in names:
            path = Path(directory, name)
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@cache
def _own_folder(process: int, parent: str) -> str:
    _remove_abandoned(Path(parent))
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    # Locked before it has its name: the lock of a living process is never seen free.
    unnamed = os.path.join(folder, "new")
    fcntl.flock(os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    os.rename(unnamed, os.path.join(folder, _LOCK))

    def remove() -> None:
        if os.getpid() == process:  # not in a fork
            remove_tree(Path(folder))

    atexit.register(remove)
    return folder


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            number = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        finally:
            os.close(number)
        remove_tree(lock.parent)
