"""One program and everything that it starts, however it hides.

Between the supervisor and each program stands a keeper: a fork of the supervisor that adopts every
orphan below it. So whatever a program starts, by ``setsid`` or double forks, stays below its keeper
until it is dead; when the kernel tells the keeper that it has no child left, nothing is left. The
keeper has the supervisor's uid and no capability but to kill: the program cannot signal it.

The program's process is there before it is known what it shall be: it waits, with everything done
that does not depend on that, for an order on a pipe. So a spare one can be kept ready.

Supervisor and keeper speak over a socket of messages. To the keeper: ``K`` kill everything;
``S signal ticks pid`` send the main process a signal, kill what else was started since (see
kernel.Moment). From it:
``E code text`` the program could not start; ``X status`` the main process ended; ``D`` the ``S``
was done. When the socket ends nothing is left of the program, or the keeper was killed: that is
so where neither ``K`` nor ``X`` came first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import time
from typing import NamedTuple, NoReturn, Protocol

from vf.sandbox.inside import kernel
from vf.sandbox.inside.loop import Loop, Outlet

RESET = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGUSR1,
    signal.SIGIO,
)
SLAY_SECONDS = 5.0
NICE = 10  # what a program runs with: the one that shall kill it must get to run
LONGEST_ARGUMENT = 2**17  # the kernel refuses a longer one (MAX_ARG_STRLEN)


class Stage(NamedTuple):
    """Where a program will run.

    ``fds`` maps descriptors of the program to ones of this process; ``walls``: a Landlock ruleset.
    """

    who: kernel.Identity
    fds: dict[int, int]
    rlimits: list[tuple[int, int]]
    walls: int


class Owner(Protocol):
    """Who is told what becomes of a program."""

    def exited(self, code: int, trouble: str) -> None:
        """The main process ended; 128 + n for signal n. ``trouble``: why it could not start."""

    def settled(self) -> None:
        """A ``signal`` was done."""

    def ended(self) -> None:
        """Nothing is left of the program."""


class Keeper:
    """The supervisor's end."""

    def __init__(self, loop: Loop, stage: Stage) -> None:
        """Make a process that waits for :meth:`run`.

        Raises:
            OSError: There can be no further process, or no further descriptor.
        """
        self._loop = loop
        self._owner: Owner | None = None
        self._trouble = ""
        self.alive = True
        self.killed = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order, w = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            ours.close()
            os.close(w)
            raise
        else:
            if self.pid == 0:
                keep(theirs, order, stage)
        finally:
            theirs.close()
            os.close(order)
        self._socket, self._order = ours, Outlet(loop, w)
        ours.setblocking(False)
        loop.watch(ours.fileno(), self._read)

    def run(self, owner: Owner, argv: list[str] | str, env: dict[str, str], cwd: str) -> None:
        """Let the process be a program, or the shell with a line."""
        self._owner = owner
        self._order.send(json.dumps([argv, env, cwd]).encode())
        self._order.end()

    def kill(self) -> None:
        """Kill everything; the owner is told when it has ended."""
        self.killed = True
        self._send(b"K")

    def signal(self, number: int, since: kernel.Moment) -> None:
        """Signal the main process, kill what was started since then; tell the owner when done."""
        self._send(b"S %d %d %d" % (number, *since))

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(message)

    def _read(self) -> None:
        try:
            message = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        kind, _, rest = message.partition(b" ")
        if kind == b"E":
            self._trouble = rest.decode("utf-8", "replace")
        elif kind == b"X":
            if self._owner is not None:
                self._owner.exited(returncode(int(rest)), self._trouble)
        elif kind == b"D":
            if self._owner is not None:
                self._owner.settled()
        else:
            self.alive = False
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._order.close()
            if self._owner is not None:
                self._owner.ended()


def returncode(status: int) -> int:
    """Return what a shell would say of a wait status."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor from 3 up that is not named."""
    start = 3
    for fd in sorted(fd for fd in keep if fd >= 3):
        os.closerange(start, fd)
        start = fd + 1
    # Descriptors are given out from below, so the supervisor never has one above this.
    os.closerange(start, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 8192))


def keep(channel: socket.socket, order: int, stage: Stage) -> NoReturn:
    """Be the keeper, in the child of a fork."""
    code = 70
    try:
        Watch(channel, order, stage).run()
        code = 0
    except BaseException as exc:
        with contextlib.suppress(OSError):
            os.write(2, f"supervisor: a keeper failed: {exc!r}\n".encode())
    finally:
        os._exit(code)


class Watch:
    """The keeper's end."""

    def __init__(self, channel: socket.socket, order: int, stage: Stage) -> None:
        """Start the program's process below us."""
        self._channel = channel
        self._who = stage.who
        close_all_but({channel.fileno(), order, stage.walls, *stage.fds.values()})
        kernel.adopt_orphans()
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            self.main = os.fork()
        except OSError as exc:
            channel.send(f"E cannot start: {exc.strerror}".encode())
            channel.send(b"X %d" % (126 << 8))
            self.main = -1
            return
        if self.main == 0:
            start(channel, order, stage)
        for fd in {order, *stage.fds.values()}:
            os.close(fd)
        self._who.watch()

    def run(self) -> None:
        """Watch until nothing is left."""
        if self.main < 0:
            return
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while self._reap():
            for fd, _ in poll.poll():
                if fd == self._wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                else:
                    self._obey(self._hear())

    def _reap(self) -> bool:
        """Bury the dead; return whether anybody is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.main:
                    with contextlib.suppress(OSError):
                        self._channel.send(b"X %d" % status)
        except ChildProcessError:
            return False

    def _hear(self) -> bytes:
        """Return the next order; where the supervisor is gone, that is to kill everything."""
        try:
            return self._channel.recv(4096)
        except OSError:
            return b""

    def _obey(self, message: bytes) -> None:
        if message[:1] == b"S":
            number, *since = map(int, message[1:].split())
            self._who.kill(self.main, number)
            done = self._slay(kernel.Moment(*since))
            with contextlib.suppress(OSError):
                if done:  # otherwise the supervisor will have all of it killed
                    self._channel.send(b"D")
        else:
            self._slay(None)

    def _slay(self, since: kernel.Moment | None) -> bool:
        """Stop all of them first, so that nobody is left to start another, then kill.

        Returns whether they are dead, on a busy machine too, before time is up.
        """
        deadline = time.monotonic() + SLAY_SECONDS
        while time.monotonic() < deadline:
            stopped: set[int] = set()
            while True:
                fresh = self._below(since) - stopped
                if not fresh:
                    break
                for pid in fresh:
                    self._who.kill(pid, signal.SIGSTOP)
                stopped |= fresh
            for pid in stopped:
                self._who.kill(pid, signal.SIGKILL)
            if not self._reap() or not stopped:
                return True
            time.sleep(0.001)
        return False

    def _below(self, since: kernel.Moment | None) -> set[int]:
        """Return who is alive below us; with ``since`` only what main started since then."""
        children: dict[int, list[kernel.Process]] = {}
        for process in kernel.processes().values():
            children.setdefault(process.parent, []).append(process)
        found: set[int] = set()
        roots = [os.getpid()] if since is None else [os.getpid(), self.main]
        while roots:
            for process in children.get(roots.pop(), []):
                spared = since is not None and (
                    process.pid == self.main or not since.precedes(process)
                )
                if not spared:
                    roots.append(process.pid)
                    if process.state not in "ZX":
                        found.add(process.pid)
        return found


def start(channel: socket.socket, order: int, stage: Stage) -> NoReturn:
    """Wait for the order and become the program, in the child of a fork."""
    code, name = 126, ""
    try:
        prepare(stage)
        text = b""
        while more := os.read(order, 2**20):
            text += more
        argv, env, cwd = json.loads(text)
        stage.who.become()
        kernel.die_with_parent()
        os.chdir(cwd)
        if isinstance(argv, str):
            argv = shell(argv)
        name = argv[0]
        code = execute(argv, env)
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    except BaseException as exc:
        reason = exc.strerror if isinstance(exc, OSError) else repr(exc)
        name = getattr(exc, "filename", None) or name
        with contextlib.suppress(OSError):
            channel.send(f"E {str(name)[:1000]}: {reason}".encode("utf-8", "replace"))
    finally:
        os._exit(code)


def prepare(stage: Stage) -> None:
    """Take on descriptors and limits."""
    signal.set_wakeup_fd(-1)
    for number in RESET:
        signal.signal(number, signal.SIG_DFL)
    moved = {fd: fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 64) for fd, ours in stage.fds.items()}
    for fd, ours in moved.items():
        os.dup2(ours, fd, inheritable=True)
    os.setsid()
    kernel.die_first()
    kernel.stay_within(stage.walls)
    lower_limits(stage.rlimits)
    os.nice(NICE)
    os.umask(0o022)


def lower_limits(rlimits: list[tuple[int, int]]) -> None:
    """Lower resource limits, as far as we may."""
    for kind, value in rlimits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def shell(line: str) -> list[str]:
    """Return how to have the shell run a line, however long."""
    if len(line) <= LONGEST_ARGUMENT // 4:
        return ["/bin/sh", "-c", line]
    fd = os.memfd_create("line")
    data = memoryview(os.fsencode(line))
    while data:
        data = data[os.write(fd, data) :]
    os.dup2(fd, 9, inheritable=True)
    return ["/bin/sh", "/proc/self/fd/9"]


def execute(argv: list[str], env: dict[str, str]) -> int:
    """Run the first such program on the path; return 127 where there is none.

    Raises:
        OSError: There is one that cannot be run.
    """
    denied: OSError | None = None
    name = argv[0]
    folders = env.get("PATH", "/usr/bin:/bin").split(":") if "/" not in name else [""]
    for folder in folders:
        try:
            os.execve(os.path.join(folder, name) if folder else name, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as exc:
            denied = exc
    if denied is not None:
        raise denied
    return 127
