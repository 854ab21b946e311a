"""The users and groups of the image.

The lists are read once, before any code runs: later changes to them change no uid. The C library is
not used for that, since it would load whatever libraries the image's settings name.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import NamedTuple

LARGEST = 2**20  # bytes of a list that are read
ANYWHERE = "/"  # the home of whoever has none
ROOT = "root"
MOST = 2**31 - 1
DIGITS = re.compile("[0-9]{1,10}")


class Account(NamedTuple):
    """A user: ``groups`` are those beside ``gid``."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class Users:
    """The users and groups of the image."""

    def __init__(self) -> None:
        """Read the lists; without them, only numbers are valid users."""
        self._users = [line for line in lines("/etc/passwd", 7) if number(line[2], line[3])]
        self._groups = [line for line in lines("/etc/group", 4) if number(line[2])]

    def find(self, text: str) -> Account:
        """Return a user from ``user`` or ``user:group``, names or numbers, as a Dockerfile has it.

        A number that is not in the list is a user of the group 0 without a home, and so is root.

        Raises:
            ValueError: If there is no such user or group.
        """
        name, colon, group = text.partition(":")
        entry = next((line for line in self._users if name in (line[0], line[2])), None)
        if entry is not None:
            uid, gid, home = int(entry[2]), int(entry[3]), entry[5] or ANYWHERE
        elif name == ROOT or number(name):
            uid, gid, home = 0 if name == ROOT else int(name), 0, ANYWHERE
        else:
            raise ValueError(f"there is no user {name!r} in the sandbox")
        if colon:
            return Account(uid, self._group(group), (), home)
        named = entry[0] if entry is not None else ""
        others = (int(line[2]) for line in self._groups if named in line[3].split(","))
        return Account(uid, gid, tuple(others) if named else (), home)

    def _group(self, name: str) -> int:
        for line in self._groups:
            if name in (line[0], line[2]):
                return int(line[2])
        if number(name):
            return int(name)
        raise ValueError(f"there is no group {name!r} in the sandbox")


def number(*texts: str) -> bool:
    """Return whether these can be ids; to the kernel, -1 would mean to keep the current one."""
    return all(DIGITS.fullmatch(text) and int(text) < MOST for text in texts)


def lines(path: str, fields: int) -> list[list[str]]:
    """Return the lines of a list that have ``fields`` fields, even if it is not a regular file."""
    text = b""
    with contextlib.suppress(OSError):
        # A FIFO in its place must not keep us waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                text = os.read(fd, LARGEST)
        finally:
            os.close(fd)
    records = [line.split(":") for line in text.decode("utf-8", "replace").splitlines()]
    return [line for line in records if len(line) == fields]
