"""Who a container belongs to, written on it as labels, and whether that owner still lives."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MARK = "vf.sandbox"  # on every container of ours
PREFIX = MARK + "."
GRACE = 3600.0  # seconds past the expiry: clocks of machines differ, and there is no hurry


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that makes sandboxes.

    Attributes:
        run: A name for this life of the process, never used twice.
        host: The machine since it last started, and the namespace in which ``pid`` counts.
        pid: The process.
        start: When the process started, in the kernel's own count; empty where unknown.
    """

    run: str
    host: str
    pid: int
    start: str

    def labels(self, lifetime: float) -> dict[str, str]:
        """Return the labels of a container that ends by itself after ``lifetime`` seconds."""
        return {
            MARK: "1",
            PREFIX + "run": self.run,
            PREFIX + "host": self.host,
            PREFIX + "pid": str(self.pid),
            PREFIX + "start": self.start,
            PREFIX + "expires": f"{time.time() + lifetime:.0f}",
        }


def this_process() -> Owner:
    """Return this process; a forked child is another."""
    return _owner(os.getpid())


@cache
def _owner(pid: int) -> Owner:
    return Owner(secrets.token_hex(6), this_host(), pid, start_of(pid) or "")


@cache
def this_host() -> str:
    """Name this machine since its last start, and its process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def start_of(pid: int) -> str | None:
    """Return when a process of this machine started, "" where that is unknown, None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        return "" if _exists(pid) else None
    # The name stands in parentheses and may hold spaces; the 20th field after it is the start.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def why_dead(labels: Mapping[str, str], *, host: str, now: float) -> str | None:
    """Return why a container with these labels is provably nobody's; None where it may be used.

    On its own machine a process can be looked up. Elsewhere only time tells: the container should
    have ended by itself long ago.

    Args:
        labels: The container's.
        host: This machine, as ``this_host`` names it.
        now: Seconds since the epoch.
    """
    try:
        expires, pid = float(labels[PREFIX + "expires"]), int(labels[PREFIX + "pid"])
    except (KeyError, ValueError):
        return None
    if labels.get(PREFIX + "host") == host:
        start, then = start_of(pid), labels.get(PREFIX + "start", "")
        if start is None:
            return f"its process {pid} is gone"
        if start and then:
            same = start == then
            return None if same else f"its process {pid} is gone, and another has its number"
    return "its time is over" if now > expires + GRACE else None
