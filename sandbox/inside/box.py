"""The state that all requests of a supervisor share, and how it ends them."""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import os
import resource
import signal
import time
from typing import Any, Callable  # noqa: UP035  (Python 3.9 runs this)

from vf.sandbox.frames import FrameError, encode
from vf.sandbox.inside import kernel
from vf.sandbox.inside.keeper import Keeper
from vf.sandbox.inside.loop import CHUNK, Loop, Outlet
from vf.sandbox.inside.memory import MemoryWatch, OomCounter
from vf.sandbox.inside.program import Stage
from vf.sandbox.inside.sockets import SocketMemory
from vf.sandbox.inside.users import Account, Users

ENDING = {signal.SIGTERM, signal.SIGHUP}
PATH = "/usr/local/bin:/usr/bin:/bin"  # where there is none
END_SECONDS = 10.0  # until all programs must have ended
ENOUGH = 8 * CHUNK  # bytes in the output buffer: more would only delay the next answer
Output = tuple[bytes, bytes, int]


class Box:
    """The state of all requests: the code's user, the loop, the output, and the end."""

    def __init__(self, flags: argparse.Namespace) -> None:
        """Take over stdin and stdout."""
        self.loop = Loop()
        self.workdir = os.path.abspath(flags.workdir)
        self.umask = 0o022
        self.rlimits = [parse_limit(text) for text in flags.rlimit]
        self.users = Users()
        self.switch = flags.guard is not None
        self.guard: int = flags.guard if self.switch else os.getuid()
        self.granted: int = flags.capabilities  # to code with uid 0
        account = self.users.find(flags.user or str(os.getuid()))
        self.who = self.identity_of(account)
        if self.switch:
            with contextlib.suppress(OSError):
                os.makedirs(self.workdir, exist_ok=True)
            os.chdir("/")
            kernel.give_up_root(self.guard, kernel.KEPT | self.granted)
        first = os.getpid() == 1  # of a PID namespace: nobody else is in it
        self.walls = kernel.walls() if self.switch or first else -1
        self.filter = base64.b64decode(flags.filter)
        self.cores: list[int] = flags.cores
        given = dict(pair.split("=", 1) for pair in flags.env)
        self._home_given = "HOME" in given
        home = {"HOME": flags.home or account.home}
        self.env = {"PATH": PATH, **(given or os.environ), **home, **given, "PWD": self.workdir}
        self.calls: dict[int, Any] = {}  # requests under way
        self.code = 0
        self.helpers: set[int] = set()
        folders = [self.workdir, "/tmp", "/dev/shm"]
        self.oom: OomCounter | MemoryWatch = (
            MemoryWatch(
                self.loop,
                flags.memory,
                folders,
                lambda: self.helpers,
                SocketMemory(flags.sockets),
            )
            if flags.memory
            else OomCounter()
        )
        self.keepers: list[Keeper] = []  # of all programs that may have left something
        self.requests = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        # Opened once: root may put something else in its place, which one would wait for.
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(self.null, 0)
        os.dup2(self.null, 1)
        os.set_blocking(self.requests, False)
        self.out = Outlet(self.loop, out, self._sent)
        self._waiting: list[Callable[[], None]] = []
        wakeup, w = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(w, False)
        signal.set_wakeup_fd(w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeup = wakeup
        self.loop.watch(wakeup, self._bury)
        if flags.lifetime:
            self.loop.later(flags.lifetime, lambda: self.end("its lifetime is over"))

    def identity_of(self, account: Account) -> kernel.Identity:
        """Return the identity of a user.

        Raises:
            ValueError: If it is the supervisor's own.
        """
        if self.switch and account.uid == self.guard:
            raise ValueError(f"the uid {account.uid} is the supervisor's")
        granted = self.granted if account.uid == 0 else 0
        kept = kernel.KEPT | self.granted
        return kernel.Identity(*account, self.guard, self.switch, granted, kept)

    def stage(self, who: kernel.Identity) -> Stage:
        """Return the surroundings of a user's programs."""
        return Stage(who, self.rlimits, self.walls, self.filter, self.cores)

    def variables(self, who: kernel.Identity) -> dict[str, str]:
        """Return the environment variables of a user's programs."""
        if who == self.who or self._home_given:
            return self.env
        return {**self.env, "HOME": who.home}

    def identity(self, user: str | None) -> kernel.Identity:
        """Return the identity of a user given by name or number.

        Raises:
            ValueError: If there is no such user, or this sandbox cannot switch users.
        """
        if user is None:
            return self.who
        account = self.users.find(user)
        if account.uid == self.who.uid and ":" not in user:
            return self.who
        if not self.switch:
            raise ValueError(f"this sandbox can run nothing as another user, such as {user!r}")
        return self.identity_of(account)

    def full(self, resume: Callable[[], None]) -> bool:
        """Return whether the output buffer is full; ``resume`` is then called once there is room.

        It must not send at once. Senders of much data check this first, so that other answers need
        not wait for all of it.
        """
        if len(self.out) < ENOUGH:
            return False
        self._waiting.append(resume)
        return True

    def _sent(self, count: int) -> None:
        if self._waiting and len(self.out) < ENOUGH:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()

    def oomed(self, before: int | None) -> bool:
        """Return whether the kernel has killed for lack of memory since the count was taken."""
        now = self.oom.read()
        return now is not None and before is not None and now > before

    def answer(self, number: int, header: dict[str, Any], *parts: bytes) -> None:
        """Send a frame that belongs to a request."""
        self.out.send(encode({"id": number, **header}, *parts))

    def finish(self, number: int, result: dict[str, Any], out: Output, err: Output) -> None:
        """Send a request's result."""
        self.calls.pop(number, None)
        header = {"done": True, **result, "missing": [out[2], err[2]]}
        self.answer(number, header, out[0], out[1], err[0], err[1])

    def fail(self, number: int, kind: str, message: str) -> None:
        """Answer why a request cannot be served."""
        self.calls.pop(number, None)
        self.answer(number, {"done": True, "error": kind, "message": message})

    def lost(self, number: int, why: str) -> None:
        """Answer that the sandbox is lost: its state is unknown."""
        self.fail(number, "lost", why)

    def end(self, why: str, code: int = 0) -> None:
        """Kill everything and stop serving, with an exit code."""
        self.code = code
        with contextlib.suppress(FrameError):
            self.out.send(encode({"id": 0, "bye": why}))
        self.kill_all()
        self.loop.stopped = True

    def keep(self, keeper: Keeper) -> None:
        """Register a program's keeper."""
        self.helpers.add(keeper.pid)
        self.keepers = [kept for kept in self.keepers if kept.alive]
        self.keepers.append(keeper)

    def end_programs(self, number: int) -> None:
        """Kill every program with everything that it started; answer once nothing is left."""
        keepers = [keeper for keeper in self.keepers if keeper.alive]
        for keeper in keepers:
            if not keeper.killed:
                keeper.kill()
        self._when_ended(number, keepers, time.monotonic() + END_SECONDS)

    def _when_ended(self, number: int, keepers: list[Keeper], deadline: float) -> None:
        # Only of these: others take the places of those that waited for a program.
        left = any(keeper.alive for keeper in keepers)
        for pid in [] if left else self._unkept():
            self.who.kill(pid, signal.SIGKILL)
            left = True
        if not left:
            self.answer(number, {"done": True})
        elif time.monotonic() > deadline:
            self.lost(number, "processes survived a kill")
        else:
            self.loop.later(0.002, lambda: self._when_ended(number, keepers, deadline))

    def kill_all(self) -> None:
        """Kill every process that is not the supervisor's."""
        for keeper in self.keepers:
            if keeper.alive:
                keeper.kill()  # or it would have another process wait
        deadline = time.monotonic() + 5.0
        while True:
            if self.switch:
                with self.who.killer(), contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)  # at once, so that no fork bomb outruns it
            left = self._strangers()
            if not left or time.monotonic() > deadline:
                return
            for pid in left:
                self.who.kill(pid, signal.SIGKILL)
            self._bury()
            time.sleep(0.002)

    def _strangers(self) -> list[int]:
        """Return the living processes below this one or of the model's user, except our helpers."""
        pids = set(kernel.owned_by(self.who.uid)) if self.switch else set()
        pids.update(kernel.below(os.getpid()))
        return sorted(pids - self.helpers - {os.getpid()})

    def _unkept(self) -> set[int]:
        """Return the living processes whose keeper is gone: code of its uid may have killed it."""
        if self.switch:
            return set()
        return kernel.below(os.getpid(), spared=lambda process: process.pid in self.helpers)

    def _bury(self) -> None:
        """Reap dead keepers, and orphans whose keeper was killed; end after a signal to end."""
        with contextlib.suppress(BlockingIOError):
            if not ENDING.isdisjoint(os.read(self._wakeup, 4096)):
                self.end("the supervisor received a signal to end")
                return
        with contextlib.suppress(ChildProcessError):
            while True:
                pid = os.waitpid(-1, os.WNOHANG)[0]
                self.helpers.discard(pid)
                if pid == 0:
                    return

    def leave(self) -> None:
        """Close everything, and wait until no helper has anything left to kill."""
        os.closerange(3, 8192)
        deadline = time.monotonic() + 10.0
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.002)


def parse_limit(text: str) -> tuple[int, int]:
    """Return kind and value of ``NAME=N``."""
    name, _, value = text.partition("=")
    return getattr(resource, f"RLIMIT_{name}"), int(value)
