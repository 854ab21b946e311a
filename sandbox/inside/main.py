"""The supervisor: serves requests from stdin, many at a time, and answers on stdout.

Flags: ``--uid N --gid N`` whom the model's code runs as (by default, as the supervisor does;
otherwise nobody else in the PID namespace may have that uid: at the end all of its processes are
killed),
``--workdir PATH`` the working directory, ``--lifetime SECONDS`` until it ends by itself,
``--rlimit NAME=N`` for everything that it starts (NAME as in ``resource.RLIMIT_NAME``),
``--home PATH`` the model's home, ``--parent PID`` whom to end with, ``--remove PATH`` what to
remove at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import os
import pwd
import resource
import signal
import sys
import time
from typing import Any

from vf.sandbox.frames import Decoder, FrameError, encode
from vf.sandbox.inside import console, kernel
from vf.sandbox.inside.calls import Execution, Spare
from vf.sandbox.inside.files import FileCall
from vf.sandbox.inside.loop import CHUNK, Loop, Outlet

VERSION = 1
ENDING = {signal.SIGTERM, signal.SIGHUP}
Output = tuple[bytes, bytes, int]


class Box:
    """What all requests share."""

    def __init__(self, flags: argparse.Namespace) -> None:
        """Take over stdin and stdout."""
        self.loop = Loop()
        self.workdir = os.path.abspath(flags.workdir)
        self.umask = 0o022
        self.rlimits = [parse_limit(text) for text in flags.rlimit]
        uid = os.getuid() if flags.uid is None else flags.uid
        gid = os.getgid() if flags.gid is None else flags.gid
        self.switch = os.getuid() == 0 and uid != 0
        self.who = self.identity_of(uid, gid)
        self.env = dict(os.environ)
        self.env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
        self.env.update(HOME=flags.home or self.workdir, PWD=self.workdir)
        self.oom = kernel.OomCounter()
        self.calls: dict[int, Execution | FileCall | console.Console] = {}
        self.helpers: set[int] = set()
        self.python: console.Console | None = None
        self.bash = console.bash(self)
        self.spare = Spare(self)
        self._in = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.set_blocking(self._in, False)
        self.out = Outlet(self.loop, out)
        self._decoder = Decoder()
        self.loop.watch(self._in, self._receive)
        wakeup, w = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(w, False)
        signal.set_wakeup_fd(w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeup = wakeup
        self.loop.watch(wakeup, self._bury)
        if flags.lifetime:
            self.loop.later(flags.lifetime, lambda: self.end("its lifetime is over"))

    def identity_of(self, uid: int, gid: int) -> kernel.Identity:
        """Return how to act for a user."""
        guard = 64_999 if uid != 64_999 else 64_998
        return kernel.Identity(uid, gid, guard, self.switch)

    def identity(self, user: str | None) -> kernel.Identity:
        """Return how to act for a user given by name or number.

        Raises:
            ValueError: There is no such user, or only the supervisor's own can be had.
        """
        if user is None:
            return self.who
        try:
            entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
            uid, gid = entry.pw_uid, entry.pw_gid
        except KeyError:
            if not user.isdigit():
                raise ValueError(f"there is no user {user!r} in the sandbox") from None
            uid = gid = int(user)
        if uid >= 2**31 - 1:
            raise ValueError(f"there can be no user {user!r}")  # -1 would mean: stay root
        if uid == self.who.uid:
            return self.who
        if not self.switch:
            raise ValueError(f"this sandbox can run nothing as another user, such as {user!r}")
        return self.identity_of(uid, gid)

    def oomed(self, before: int | None) -> bool:
        """Return whether the kernel has killed for want of memory since the count was taken."""
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
        """Say why a request cannot be served."""
        self.calls.pop(number, None)
        self.answer(number, {"done": True, "error": kind, "message": message})

    def lost(self, number: int, why: str) -> None:
        """Say that the sandbox cannot be trusted any more."""
        self.fail(number, "lost", why)

    def end(self, why: str) -> None:
        """Kill everything and stop serving."""
        with contextlib.suppress(FrameError):
            self.out.send(encode({"id": 0, "bye": why}))
        self.kill_all()
        self.loop.stopped = True

    def kill_all(self) -> None:
        """Kill every process that is not ours."""
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
        """Return who is alive below us or of the model's user, and no helper of ours."""
        found = set(kernel.owned_by(self.who.uid)) if self.switch else set()
        everybody = kernel.processes()
        for process in everybody.values():
            above: kernel.Process | None = process
            while above is not None and above.pid != os.getpid():
                above = everybody.get(above.parent)
            if above is not None and process.state not in "ZX":
                found.add(process.pid)
        return sorted(found - self.helpers - {os.getpid()})

    def _receive(self) -> None:
        try:
            data = os.read(self._in, 4 * CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end("the client is gone")
            return
        try:
            for header, parts in self._decoder.feed(data):
                self._dispatch(header, parts)
        except FrameError as exc:
            self.end(f"protocol error: {exc}")

    def _dispatch(self, request: dict[str, Any], parts: list[bytes]) -> None:
        number = int(request["id"])
        try:
            self._serve(number, request, parts)
        except ValueError as exc:
            self.fail(number, "value", str(exc))
        except Exception as exc:
            self.fail(number, "lost", f"the supervisor failed: {exc!r}")

    def _serve(self, number: int, request: dict[str, Any], parts: list[bytes]) -> None:
        op = request["op"]
        if op == "exec":
            try:
                Execution(self, number, request, parts[0] if parts else b"")
            except OSError as exc:
                result = {"returncode": 126, "note": f"cannot start: {exc.strerror}"}
                self.finish(number, result, (b"", b"", 0), (b"", b"", 0))
        elif op in ("python", "bash"):
            program = self.bash if op == "bash" else self.python
            if program is None:
                raise RuntimeError("no hello came first")
            self.calls[number] = program
            program.submit(console.Call(number, parts[0], float(request["timeout"])))
        elif op in ("read", "write"):
            try:
                FileCall(self, number, request, parts[0] if parts else b"")
            except OSError as exc:  # no further process, say: the code's doing, and no loss
                self.calls.pop(number, None)
                error = {"error": "os", "errno": exc.errno, "message": exc.strerror}
                self.answer(number, {"done": True, **error})
        elif op == "data":
            call = self.calls.get(number)
            if isinstance(call, (Execution, FileCall)):
                call.feed(parts[0], end=bool(request["end"]))
            else:
                self.answer(number, {"ack": len(parts[0])})
        elif op == "cancel":
            call = self.calls.get(number)
            if isinstance(call, console.Console):
                call.cancel(number)
            elif call is not None:
                call.cancel()
        else:
            self.answer(number, {"done": True, **self._tell(op, request, parts)})

    def _tell(self, op: str, request: dict[str, Any], parts: list[bytes]) -> dict[str, Any]:
        if op == "hello":
            if request["version"] != VERSION:
                raise RuntimeError(f"version {request['version']} is not {VERSION}")
            self.python = console.python(self, parts[0].decode(), sys.executable)
            self.spare.fill()
            return {"pid": os.getpid(), "python": sys.version.split()[0], "uid": self.who.uid}
        if op == "warm":
            for program in (self.python, self.bash):
                if program is not None and program.name in request["what"]:
                    program.warm()
            return {}
        if op == "stats":
            return {"oom_kills": self.oom.read(), "calls": len(self.calls), **usage()}
        if op == "ping":
            return {}
        raise RuntimeError(f"there is no request {op!r}")

    def _bury(self) -> None:
        """Bury dead keepers, and orphans whose keeper was killed; end where a signal says so."""
        with contextlib.suppress(BlockingIOError):
            if not ENDING.isdisjoint(os.read(self._wakeup, 4096)):
                self.end("the supervisor was told to end")
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


def usage() -> dict[str, Any]:
    """Return the supervisor's own time on the processor, seconds, and peak memory, bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}


def parse_limit(text: str) -> tuple[int, int]:
    """Return kind and value of ``NAME=N``."""
    name, _, value = text.partition("=")
    return getattr(resource, f"RLIMIT_{name}"), int(value)


def main(arguments: list[str]) -> int:
    """Serve until stdin ends, or the lifetime is over."""
    parser = argparse.ArgumentParser("supervisor")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--workdir", default=os.getcwd())
    parser.add_argument("--home")
    parser.add_argument("--lifetime", type=float)
    parser.add_argument("--rlimit", action="append", default=[])
    parser.add_argument("--parent", type=int)
    parser.add_argument("--remove")
    flags = parser.parse_args(arguments)
    box = Box(flags)
    kernel.harden()
    kernel.adopt_orphans()
    for number in ENDING:
        signal.signal(number, lambda *_: None)  # Box._bury sees it, between two events
    if flags.parent:
        kernel.die_with_parent(signal.SIGTERM)
        if os.getppid() != flags.parent:
            box.end("its parent is gone")
    # A fork copies what the collector touches; nothing here makes cycles that matter.
    gc.collect()
    gc.freeze()
    gc.disable()
    box.loop.run()
    signal.set_wakeup_fd(-1)
    box.leave()
    if flags.remove:
        import shutil

        os.chdir("/")
        shutil.rmtree(flags.remove, ignore_errors=True)
    return 0
