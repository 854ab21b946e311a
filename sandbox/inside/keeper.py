"""One program and everything that it starts, however it hides.

Between the supervisor and each program is a keeper: a fork of the supervisor that adopts every
orphan below it. So whatever a program starts, by ``setsid`` or double forks, stays below its keeper
until it is dead; when the keeper has no child left, nothing is left. The keeper has the
supervisor's uid and no capability but to kill: the program cannot signal it.

The program's process starts before its program is known: it prepares what does not depend on that,
then waits for an order with its descriptors on a socket. So a spare one can be kept ready. Once
nothing is left of a program, another process waits below the same keeper.

A process that is killed while it waits, for lack of memory for instance, leaves the order to the
next one. So before it takes an order, it notes that in memory shared with the keeper: then the
order counts as carried out, and the keeper removes it if it had not been taken yet.

Supervisor and keeper exchange messages on a socket. To the keeper: ``K`` kill everything;
``S signal ticks pid`` send the main process a signal, kill what else was started since (see
kernel.Moment). From it: ``E text`` the program could not start; ``X status`` the main process
ended; ``D`` the ``S`` was done; ``I`` nothing is left of the program, and there may be another one.
When the socket ends nothing is left either, or the keeper was killed: that is so where neither
``K`` nor ``X`` came first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import select
import signal
import socket
import time
from typing import Callable, NoReturn, Protocol  # noqa: UP035  (Python 3.9 runs this)

from vf.sandbox.inside import kernel
from vf.sandbox.inside.loop import Loop
from vf.sandbox.inside.program import MOST_DESCRIPTORS, Stage, send, start

HANDLED = (
    signal.SIGCHLD,
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


class Owner(Protocol):
    """Receives the events of a program."""

    def exited(self, code: int, trouble: str) -> None:
        """The main process ended; 128 + n for signal n. ``trouble``: why it could not start."""

    def settled(self) -> None:
        """A ``signal`` was done."""

    def ended(self) -> None:
        """Nothing is left of the program."""


class Keeper:
    """The supervisor's end."""

    def __init__(
        self, loop: Loop, stage: Stage, idle: Callable[[Keeper], None] | None = None
    ) -> None:
        """Make a process that waits for :meth:`run`.

        Args:
            loop: The event loop that reads from it.
            stage: The surroundings of the program.
            idle: Called each time that nothing is left of a program, and :meth:`run` may be called
                again; by default it is closed then.

        Raises:
            OSError: If no further process can be started, or descriptor opened.
        """
        self._loop = loop
        self._owner: Owner | None = None
        self._trouble = ""
        self.alive = True
        self.killed = False
        self._idle = idle
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self.pid = os.fork()
            except OSError:
                self._orders.close()
                raise
            else:
                if self.pid == 0:
                    keep(theirs, orders, stage)
            finally:
                orders.close()
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        ours.setblocking(False)
        try:
            loop.watch(ours.fileno(), self._read)
        except OSError:
            self.close()
            raise

    def run(
        self,
        owner: Owner,
        argv: list[str] | str,
        env: dict[str, str],
        cwd: str,
        fds: dict[int, int],
    ) -> None:
        """Turn the process into a program, or into the shell with a line.

        ``fds`` maps descriptors of the program to ones of this process.

        Raises:
            OSError: If no further descriptor can be opened; it is closed then.
        """
        try:
            with contextlib.suppress(BrokenPipeError):  # it was killed: _read learns of that
                send(self._orders, (argv, env, cwd), fds)
        except OSError:
            self.close()  # it will get no other order
            raise
        self._owner, self._trouble = owner, ""

    def kill(self) -> None:
        """Kill everything; the owner's ``ended`` is called once it is dead."""
        self.killed = True
        self._send(b"K")

    def signal(self, number: int, since: kernel.Moment) -> None:
        """Signal the main process, kill what was started since then; tell the owner when done."""
        self._send(b"S %d %d %d" % (number, *since))

    def close(self) -> None:
        """End it, with everything that is left of a program. Safe to call twice."""
        if not self.alive:
            return
        self.alive = False
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        self._orders.close()

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(message)
            os.kill(self.pid, signal.SIGCONT)  # where code has its uid, that may have stopped it

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
            owner, self._owner = self._owner, None
            again = kind == b"I" and self._idle is not None and not self.killed
            if not again:
                self.close()
            if owner is not None:
                owner.ended()
            if again and self._idle is not None:
                self._idle(self)


def returncode(status: int) -> int:
    """Return a shell's exit code for a wait status."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor from 3 up that is not named."""
    start = 3
    for fd in sorted(fd for fd in keep if fd >= 3):
        os.closerange(start, fd)
        start = fd + 1
    # Descriptors are given out from below, so the supervisor never has one above this.
    os.closerange(start, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 8192))


def keep(channel: socket.socket, orders: socket.socket, stage: Stage) -> NoReturn:
    """Run the keeper, in the child of a fork."""
    code = 70
    try:
        Watch(channel, orders, stage).run()
        code = 0
    except BaseException as exc:
        with contextlib.suppress(OSError):
            os.write(2, f"supervisor: a keeper failed: {exc!r}\n".encode())
    finally:
        os._exit(code)


class Watch:
    """The keeper's end."""

    def __init__(self, channel: socket.socket, orders: socket.socket, stage: Stage) -> None:
        """Set up the keeper, out of the program's reach."""
        self._channel, self._orders, self._stage = channel, orders, stage
        self._who = stage.who
        orders.setblocking(False)
        self._ending = False
        self._noted = mmap.mmap(-1, 1)
        self.main = -1
        close_all_but({channel.fileno(), orders.fileno(), stage.walls})
        kernel.adopt_orphans()
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        # Handled, not ignored: an exec sets those back, and no program need do it for itself.
        for number in HANDLED:
            signal.signal(number, lambda *_: None)
        self._who.watch()

    def run(self) -> None:
        """Watch one program after the other, until told to end."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while not self._ending and self._fork():
            self._watch(poll)
            if self._taken() and not self._ending:
                self._clear()
                self._send(b"I")

    def _taken(self) -> bool:
        """Whether the main process has taken an order, or was just about to."""
        return self._noted[0] != 0

    def _clear(self) -> None:
        """Drop the order that a process took, for the next one. No other takes any now."""
        self._noted[0] = 0
        # It may have been killed after it noted the order, and before it took it.
        with contextlib.suppress(OSError):
            for fd in socket.recv_fds(self._orders, 1, MOST_DESCRIPTORS)[1]:
                os.close(fd)

    def _send(self, message: bytes) -> None:
        try:
            self._channel.send(message)
        except OSError:  # the supervisor is gone
            self._ending = True

    def _fork(self) -> bool:
        """Start a process that waits for an order, if that is possible."""
        try:
            self.main = os.fork()
        except OSError as exc:
            self._send(f"E cannot start: {exc.strerror}".encode())
            self._send(b"X %d" % (126 << 8))
            return False
        if self.main == 0:
            start(self._channel, self._orders, self._stage, self._noted)
        return True

    def _watch(self, poll: select.poll) -> None:
        """Watch until nothing is left."""
        while self._reap():
            for fd, _ in poll.poll():
                if fd == self._wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                else:
                    self._obey(self._hear())

    def _reap(self) -> bool:
        """Reap the dead; return whether any process is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.main and self._taken():
                    self._send(b"X %d" % status)
        except ChildProcessError:
            return False

    def _hear(self) -> bytes:
        """Return the next message; empty, which means to kill everything, without a supervisor."""
        try:
            return self._channel.recv(4096)
        except OSError:
            return b""

    def _obey(self, message: bytes) -> None:
        if message[:1] == b"S":
            number, *since = map(int, message[1:].split())
            self._who.kill(self.main, number)
            if self._slay(kernel.Moment(*since)):
                self._send(b"D")  # otherwise the supervisor will have all of it killed
        else:
            self._ending = True
            self._slay(None)

    def _slay(self, since: kernel.Moment | None) -> bool:
        """Stop all of them first, so that none is left to start another, then kill.

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
        """Return the living processes below; with ``since`` those that main started since then."""
        if since is None:
            return kernel.below(os.getpid())

        def spared(process: kernel.Process) -> bool:
            return process.pid == self.main or not since.precedes(process)

        return kernel.below(os.getpid(), self.main, spared=spared)
