"""The supervisor's system calls: identities, capabilities, signals, the list of processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import time
from typing import Callable, Iterator, NamedTuple  # noqa: UP035  (Python 3.9 runs this)

_libc = ctypes.CDLL(None, use_errno=True)
_IS_DUMPABLE = 3
_DEATHSIG, _DUMPABLE, _KEEP_CAPABILITIES, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 8, 36, 38
_SECCOMP, _FILTER = 22, 2
# Landlock: its system calls, which have one number everywhere, and what a ruleset handles.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_VERSION, _PATH_BENEATH = 1, 1
TICKS = os.sysconf("SC_CLK_TCK")
MOST_OPEN = 2**16  # open files of all processes that are examined


class Identity(NamedTuple):
    """The user that a child runs as; the first four fields are those of users.Account.

    ``guard`` is the supervisor's own uid, which no other process has: no process of ``uid`` may
    signal or trace one with it as its real and saved uid, even if ``uid`` is 0, since code has no
    capabilities but those ``granted``, as bits. The supervisor has those ``kept``. ``switch``:
    whether it may become other users at all.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    guard: int
    switch: bool
    granted: int
    kept: int

    def become(self) -> None:
        """Become that user permanently."""
        if self.switch:
            hold(self.kept, self.kept)
            self._join()
            os.setresuid(self.uid, self.uid, self.uid)
            hold(self.granted, self.granted)

    def rehearse(self) -> None:
        """Do some of what :meth:`become` does, and undo it: see program.rehearse."""
        if self.switch:
            hold(self.kept, self.kept)
            hold(KILL, self.kept)

    def act(self) -> None:
        """Take that user's rights permanently, out of that user's reach."""
        if self.switch:
            self._join()
            os.setresuid(self.guard, self.uid, self.guard)
            hold(self.granted, self.granted)

    def watch(self) -> None:
        """Keep the right to kill that user's processes; what is forked may become that user."""
        if self.switch:
            hold(KILL, self.kept)

    def _join(self) -> None:
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)

    @contextlib.contextmanager
    def killer(self) -> Iterator[None]:
        """Act as that user for a moment, able to signal that user's processes and our helpers.

        The saved uid stays ours, so that we can switch back, and code cannot signal us meanwhile.
        """
        if not self.switch:
            yield
            return
        os.setresuid(self.guard, self.uid, self.guard)
        hold(BECOME, self.kept)
        try:
            yield
        finally:
            os.setresuid(self.guard, self.guard, self.guard)
            hold(self.kept, self.kept)
            own_files(True)

    @contextlib.contextmanager
    def maker(self) -> Iterator[None]:
        """Make pipes that belong to that user, so that /dev/stdout can be opened."""
        if not self.switch:
            yield
            return
        _libc.setfsuid(self.uid)
        try:
            yield
        finally:
            _libc.setfsuid(self.guard)
            own_files(True)

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a process of that user."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


# The capabilities that the supervisor keeps, as bits: to kill, and to become others.
KILL, BECOME = 1 << 5, 1 << 6 | 1 << 7
KEPT = KILL | BECOME
_CAPABILITY_VERSION = 0x20080522


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Capabilities(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def hold(effective: int, permitted: int) -> None:
    """Set the capabilities of this process to these.

    Raises:
        OSError: If some are not available.
    """
    header = _CapabilityHeader(_CAPABILITY_VERSION, 0)
    data = (_Capabilities * 2)(_Capabilities(effective, permitted, 0))
    if _libc.capset(ctypes.byref(header), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the capabilities cannot be set: {os.strerror(number)}")


def give_up_root(guard: int, kept: int) -> None:
    """Become a user that no other process has, permanently, with the capabilities in ``kept``.

    So code with uid 0 is a stranger to the supervisor: it has the uid, but no capability.
    """
    _libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(guard, guard, guard)
    os.setresuid(guard, guard, guard)
    hold(kept, kept)
    own_files(True)


def own_files(ours: bool) -> None:
    """Make this process's files in /proc belong to its user, or to root.

    Only its user may trace a process whose files are its user's, and nobody one whose files are
    root's; but root could write to some of those. The kernel makes them root's whenever a process
    changes what it may do.
    """
    _libc.prctl(_DUMPABLE, int(ours), 0, 0, 0)


@contextlib.contextmanager
def files_owned() -> Iterator[None]:
    """Make this process's files in /proc belong to its user for a moment."""
    before = _libc.prctl(_IS_DUMPABLE, 0, 0, 0, 0)
    own_files(True)
    try:
        yield
    finally:
        own_files(before == 1)


def harden(*, alone: bool) -> None:
    """Forbid to read or trace this process, and rights gained by exec for all below it.

    Args:
        alone: Whether no code has this process's uid.
    """
    own_files(alone)
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)


def die_first() -> None:
    """Make this process, and what it starts, the first that the kernel kills for memory."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"1000")
        os.close(fd)


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def walls() -> int:
    """Return a Landlock ruleset that allows to write everywhere but in /proc; -1 if there is none.

    A process could otherwise lower its own ``oom_score_adj``, down to its container's, and have the
    kernel kill the supervisor in its place. Kernels before 5.19 are not asked: what Landlock does
    there would forbid to move a file from one folder to another, too. Nor is any where the root is
    writable: what is allowed is a list of folders, and code may make further ones there.
    """
    if not os.statvfs("/").f_flag & os.ST_RDONLY:
        return -1
    version = _libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    if version < 2:
        return -1
    handled = _WRITE_FILE | _REFER | (_TRUNCATE if version >= 3 else 0)
    attributes = _Ruleset(handled)
    ruleset: int = _libc.syscall(
        _CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0
    )
    if ruleset < 0:
        return -1
    for name in os.listdir("/"):
        if name == "proc" or not os.path.isdir(f"/{name}"):
            continue
        folder = os.open(f"/{name}", os.O_PATH | os.O_CLOEXEC)
        rule = _Beneath(handled, folder)
        _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(folder)
    return ruleset


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def restrict_calls(code: bytes) -> None:
    """Apply a filter of system calls permanently: instructions of BPF, or nothing if empty.

    Raises:
        OSError: If the kernel does not take it.
    """
    if code:
        program = _Filter(len(code) // 8, code)
        if _libc.prctl(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the filter of system calls is refused")


def stay_within(ruleset: int) -> None:
    """Apply a ruleset permanently, to what this process starts, too; -1 is none."""
    if ruleset >= 0:
        _libc.syscall(_RESTRICT_SELF, ruleset, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent ends."""
    _libc.prctl(_DEATHSIG, int(number), 0, 0, 0)


class Process(NamedTuple):
    """A line of /proc: ``start`` is in clock ticks since boot."""

    pid: int
    parent: int
    state: str
    start: int


class Moment(NamedTuple):
    """A point in time: clock ticks since boot, and the pid that was given out last.

    A tick is long enough for many processes to start in it; their pids tell them apart.
    """

    ticks: int
    pid: int

    def precedes(self, process: Process) -> bool:
        """Return whether a process was started after this."""
        return (process.start, process.pid) > self


def now() -> Moment:
    """Return the current moment, which precedes every process that starts from now on."""
    with open("/proc/loadavg", "rb") as file:
        pid = int(file.read().split()[-1])
    return Moment(int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS), pid)


def processes() -> dict[int, Process]:
    """Return all processes, by pid."""
    processes_by_pid = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                pid, state = int(name), fields[0].decode()
                if state == "Z" and int(fields[17]) > 1:
                    state = "S"  # only its first thread has ended
                processes_by_pid[pid] = Process(pid, int(fields[1]), state, int(fields[19]))
    return processes_by_pid


def below(*pids: int, spared: Callable[[Process], bool] = lambda process: False) -> set[int]:
    """Return the living processes below some, without those spared and all that is below those."""
    children: dict[int, list[Process]] = {}
    for process in processes().values():
        children.setdefault(process.parent, []).append(process)
    descendants: set[int] = set()
    roots = [*pids]
    while roots:
        for process in children.get(roots.pop(), []):
            if not spared(process):
                roots.append(process.pid)
                if process.state not in "ZX":
                    descendants.add(process.pid)
    return descendants


def owned_by(uid: int) -> list[int]:
    """Return the pids of the processes whose real user it is and that are not dead already.

    The owner of /proc/PID is not asked: a process can make that root.
    """
    alive = (pid for pid, process in processes().items() if process.state not in "ZX")
    return [pid for pid in alive if (ids := _real_ids(pid)) and ids[0] == uid]


def _real_ids(pid: int) -> tuple[int, int] | None:
    """Return a process's real user and group; None if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        return None
    uid, gid = (int(text.partition(name)[2].split(None, 1)[0]) for name in (b"\nUid:", b"\nGid:"))
    return uid, gid


def deleted_bytes(who: Identity) -> int | None:
    """Return how many bytes of disk the files take that are deleted, but open.

    Those of a process that hides its descriptors, or keeps them in a socket, are not seen.

    Args:
        who: The identity with which the supervisor runs code.

    Returns:
        None if there are more open files than ``MOST_OPEN``.
    """
    sizes: dict[tuple[int, int], int] = {}
    left, memory = MOST_OPEN, _in_memory()
    try:
        for pid in processes():
            ids = _real_ids(pid)
            if ids is not None and who.switch:  # only its own user may look at its files
                _libc.setfsgid(ids[1])
                _libc.setfsuid(ids[0])
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    left -= 1
                    if left < 0:
                        return None
                    with contextlib.suppress(OSError):
                        status = os.stat(f"/proc/{pid}/fd/{name}")
                        deleted = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
                        if deleted and status.st_dev not in memory:
                            sizes[status.st_dev, status.st_ino] = 512 * status.st_blocks
    finally:
        if who.switch:
            _libc.setfsuid(who.guard)
            _libc.setfsgid(who.guard)
            own_files(True)
    return sum(sizes.values())


def _in_memory() -> set[int]:
    """Return the devices of the files that count as memory."""
    devices = set()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, more = line.partition(" - ")
            if more.startswith("tmpfs "):
                major, minor = fields.split()[2].split(":")
                devices.add(os.makedev(int(major), int(minor)))
    with contextlib.suppress(OSError):
        file = os.memfd_create("vf")
        devices.add(os.fstat(file).st_dev)
        os.close(file)
    return devices
