"""Runs a command that must not outlive its parent: `python lifeline.py FD GRACE COMMAND ...`.

FD is the reading end of a pipe whose writing end the parent holds. When the parent ends, however
it ends, the pipe closes, and the command goes with everything that it started: daemons too, for on
Linux this process adopts what loses its parent. The parent may also write to it: a process that it
forked can hold the pipe open. GRACE is how many seconds the command gets after a SIGTERM; with 0
it is killed at once. A number that the parent writes takes its place. Standard library only, so
that any interpreter can run it, and little of it, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

LEFT_BEHIND_GRACE = 1.0  # seconds, at most, for what a command that has ended leaves behind
KILL_SECONDS = 10.0  # after which a process that cannot be killed is left alone
LOOK_SECONDS = 1.0  # between two looks whether the parent is still there
ADOPTS = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where the system has such attributes."""
    if ADOPTS:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def start(command: list[str]) -> int:
    """Start the command and return its process id, also where it cannot be run.

    It leads a group of its own: it can be ended as a whole, and Ctrl-C does not reach it.
    """
    begun, beginning = os.pipe()  # closed as the command begins: it is not inherited
    pid = os.fork()
    if pid:
        os.close(beginning)
        os.read(begun, 1)
        os.close(begun)
        return pid
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"error: cannot run {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def children() -> list[int]:
    """Return the processes that this one is the parent of, adopted ones included."""
    own = os.getpid()
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc") if ADOPTS else []):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The name, in brackets, may hold anything; behind it stand the state and the parent.
            if int(file.read().rpartition(b")")[2].split()[1]) == own:
                pids.append(int(name))
    return pids


class Command:
    """A running command.

    Attributes:
        code: Its exit code, 128 + n where signal n ended it; None while it runs.
    """

    def __init__(self, command: list[str], wake: int) -> None:
        self.code: int | None = None
        self._pid = start(command)
        self._wake = wake

    def reap(self) -> bool:
        """Collect what has ended; return whether anything is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code

    def end(self, grace: float) -> None:
        """End it and all that came of it: first politely, then for certain."""
        if grace > 0:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace
            while self.reap() and time.monotonic() < deadline:
                wait(0.05, self._wake)
        deadline = time.monotonic() + KILL_SECONDS
        # Each round's orphans are the next one's children.
        while self.reap() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            wait(0.05, self._wake)

    def _signal(self, number: int) -> None:
        if self.code is None or not ADOPTS:  # else the number may be another group's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)
        for pid in children():
            if pid != self._pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)


def wait(seconds: float, wake: int, *sources: int) -> list[int]:
    """Wait for a signal or for something to read, and return where."""
    ready = select.select([wake, *sources], [], [], seconds)[0]
    if wake in ready:
        os.read(wake, 4096)
    return ready


def main() -> int:
    """Run the command and return its exit code."""
    pipe, grace, arguments = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(pipe, False)
    wake, woken = os.pipe()  # readable after a signal
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getppid()
    command = Command(arguments, wake)
    while command.reap() and command.code is None and not signals and os.getppid() == parent:
        if pipe in wait(LOOK_SECONDS, wake, pipe):
            with contextlib.suppress(ValueError):  # the end of the pipe, or any other word
                grace = float(os.read(pipe, 64))
            break
    command.end(grace if command.code is None else min(grace, LEFT_BEHIND_GRACE))
    return command.code or 0


if __name__ == "__main__":
    sys.exit(main())
