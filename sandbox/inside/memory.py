"""The memory limit of everything in a sandbox, and the processes killed for it.

Where a control group of the kernel limits it, :class:`OomCounter` counts what that kills. Elsewhere
:class:`MemoryWatch` polls the memory of processes, temporary files and the buffers of sockets, and
kills the largest process while the sum is too large, as the kernel would. Between two polls a
sandbox can take more: what the processor writes to fresh memory in that time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Callable, Iterable, Iterator  # noqa: UP035  (Python 3.9 runs this)

from vf.sandbox.inside.loop import Loop
from vf.sandbox.inside.sockets import SocketMemory, sockets_of

SHORTEST, LONGEST = 0.05, 0.5  # seconds between two polls: while something changes, and while not
SHARE = 50  # polling takes at most one part in 50 of the processor's time


class MemoryWatch:
    """Kills the largest process while all of them take too much.

    Args:
        loop: The event loop that times the polls.
        limit: The bytes that processes, files and sockets may take together.
        folders: The temporary file systems whose files count.
        spared: Returns the processes that do not count, beside this one: copies of it that take
            little memory of their own.
        sockets: The memory of sockets.
    """

    def __init__(
        self,
        loop: Loop,
        limit: int,
        folders: Iterable[str],
        spared: Callable[[], Iterable[int]],
        sockets: SocketMemory,
    ) -> None:
        self._loop, self._limit = loop, limit
        self._folders, self._spared = list(folders), spared
        self._sockets = sockets
        self._kills = 0
        self._before = -1
        self._wait = SHORTEST
        loop.later(SHORTEST, self._look)

    def read(self) -> int:
        """Return how many processes it has killed."""
        return self._kills

    def _look(self) -> None:
        began = time.thread_time()
        used = self._files() + sum(self._sockets.sizes().values())
        used += sum(self._sizes(_anonymous).values())
        if used > self._limit:
            used = self._make_room()
        changed = abs(used - self._before) > self._limit // 256
        self._before = used
        self._wait = SHORTEST if changed else min(1.5 * self._wait, LONGEST)
        self._loop.later(max(self._wait, SHARE * (time.thread_time() - began)), self._look)

    def _make_room(self) -> int:
        """Kill until it fits; return what is taken then, bytes."""
        sizes, socket_sizes = self._sizes(_proportional), self._sockets.sizes()
        used = self._files() + sum(socket_sizes.values()) + sum(sizes.values())
        for pid in sizes:
            sizes[pid] += sum(socket_sizes.pop(inode, 0) for inode in sockets_of(pid))
        for pid in sorted(sizes, key=lambda pid: -sizes[pid]):
            if used <= self._limit:
                break
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                self._kills += 1
            used -= sizes[pid]
        return used

    def _sizes(self, measure: Callable[[int], int]) -> dict[int, int]:
        """Return the bytes of each process that may be killed, by pid."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        return {pid: measure(pid) for pid in pids - {os.getpid(), *self._spared()}}

    def _files(self) -> int:
        """Return the bytes of temporary files, deleted ones that are open included."""
        used = 0
        for folder in self._folders:
            with contextlib.suppress(OSError):
                status = os.statvfs(folder)
                used += (status.f_blocks - status.f_bfree) * status.f_frsize
        return used


def _anonymous(pid: int) -> int:
    """Return the bytes that a process has to itself, or has from before a fork, and its tables.

    Where its first thread has ended, only the others show them.
    """
    names = (b"RssAnon:", b"VmSwap:", b"VmPTE:")
    if size := _sum(f"/proc/{pid}/status", names):
        return size
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if size := _sum(f"/proc/{pid}/task/{thread}/status", names):
                return size
    return 0


def _proportional(pid: int) -> int:
    """Return a process's own bytes, and its part of what it shares with others.

    Where it hides them, all that it shares counts as its own.
    """
    shared = _sum(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"SwapPss:"))
    return shared + _sum(f"/proc/{pid}/status", (b"VmPTE:",)) if shared else _anonymous(pid)


def _sum(path: str, names: tuple[bytes, ...]) -> int:
    """Return the sum of the fields of a file in /proc that is in kB, in bytes."""
    total = 0
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in file:
            if line.startswith(names):
                total += int(line.split()[1]) * 1024
    return total


class OomCounter:
    """How many processes of our control group the kernel has killed for lack of memory."""

    def __init__(self) -> None:
        """Find the counter; there may be none."""
        self._fd = -1
        for path in self._paths():
            with contextlib.suppress(OSError):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if self.read() is not None:
                    return
                os.close(self._fd)
                self._fd = -1

    @staticmethod
    def _paths() -> Iterator[str]:
        with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
            for line in file:
                _, kinds, path = line.strip().split(":", 2)
                if not kinds:
                    yield f"/sys/fs/cgroup{path}/memory.events"
                elif "memory" in kinds.split(","):
                    yield f"/sys/fs/cgroup/memory{path}/memory.oom_control"
        yield "/sys/fs/cgroup/memory.events"
        yield "/sys/fs/cgroup/memory/memory.oom_control"

    def read(self) -> int | None:
        """Return the count, or None where it cannot be read."""
        if self._fd < 0:
            return None
        for line in os.pread(self._fd, 4096, 0).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return None
