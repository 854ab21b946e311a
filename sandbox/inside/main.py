"""The supervisor: serves requests from stdin, many at a time, and answers on stdout.

Flags: ``--user NAME`` the user that the model's code runs as (by default the supervisor's own),
``--guard UID`` another uid for the supervisor (at the end all processes of the code's user in the
PID namespace are killed then), ``--capabilities BITS`` for code with uid 0, ``--python PATH`` the
persistent Python, ``--env NAME=VALUE`` a variable, ``--workdir PATH`` the working directory,
``--home PATH`` the model's home, ``--lifetime SECONDS`` until it ends by itself, ``--rlimit
NAME=N`` for everything that it starts (NAME as in ``resource.RLIMIT_NAME``), ``--memory BYTES`` for
all of it, where no control group limits it, and with that ``--sockets FD``, a connection to the
kernel's diagnosis of sockets, ``--filter BASE64`` a filter of system calls for everything that it
starts, ``--cores N ...`` the processor's cores that programs may use, ``--parent PID`` the process
with which it ends, ``--remove PATH`` a folder to remove at the end.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import signal
import sys
import time
from typing import Any

from vf.sandbox.frames import CONNECTION_ENDED, Decoder, FrameError
from vf.sandbox.inside import console, kernel
from vf.sandbox.inside.box import ENDING, Box
from vf.sandbox.inside.calls import Backgrounds, Execution, Spare
from vf.sandbox.inside.files import FileCall
from vf.sandbox.inside.loop import CHUNK
from vf.sandbox.inside.tunnel import Tunnel

VERSION = 1


class Supervisor(Box):
    """Reads the requests and serves them."""

    def __init__(self, flags: argparse.Namespace) -> None:
        """Take over stdin and stdout."""
        super().__init__(flags)
        self.interpreter: str = flags.python
        self.python: console.Console | None = None
        self.bash = console.bash(self)
        self.spare = Spare(self)
        self.tunnel = Tunnel(self)
        self.backgrounds = Backgrounds(self)
        self._decoder = Decoder()
        self._heard = time.monotonic()
        self.loop.watch(self.requests, self._receive)

    def _receive(self) -> None:
        try:
            data = os.read(self.requests, 4 * CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end("the client is gone", CONNECTION_ENDED)
            return
        self._heard = time.monotonic()
        try:
            for header, parts in self._decoder.feed(data):
                self._dispatch(header, parts)
        except FrameError as exc:
            self.end(f"protocol error: {exc}")

    def _listen_for(self, silence: float) -> None:
        """End when the client has been silent for ``silence`` seconds; check four times in them."""
        if time.monotonic() - self._heard > silence:
            self.end(f"the client gave no sign of life for {silence:g} s")
        else:
            self.loop.later(silence / 4, lambda: self._listen_for(silence))

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
                Execution(self, self.spare, number, request, parts[0] if parts else b"")
            except OSError as exc:
                result = {"returncode": 126, "note": f"cannot start: {exc.strerror}"}
                self.finish(number, result, (b"", b"", 0), (b"", b"", 0))
        elif op in ("python", "bash"):
            program = self.bash if op == "bash" else self.python
            if program is None:
                raise RuntimeError("no hello came first")
            self.calls[number] = program
            program.submit(console.Call(number, parts[0], float(request["timeout"])))
        elif op == "start":
            try:
                self.backgrounds.start(self.spare, number, request)
                self.answer(number, {"done": True})
            except OSError as exc:
                self.refuse(number, exc)
        elif op in ("read", "write", "pack", "unpack"):
            try:
                FileCall(self, number, request, parts[0] if parts else b"")
            except OSError as exc:  # no further process, say: the code's doing, and no loss
                self.refuse(number, exc)
        elif op == "data":
            call = self.calls.get(number)
            if isinstance(call, (Execution, FileCall)):
                call.feed(parts[0], end=bool(request["end"]))
            else:
                self.answer(number, {"ack": len(parts[0])})
        elif op == "took":
            call = self.calls.get(number)
            if isinstance(call, Execution):
                call.took(int(request["count"]))
        elif op == "kill":
            self.backgrounds.kill(number, request)
        elif op == "process":
            self.backgrounds.take(number, request, parts)
        elif op == "tunnel":
            self.tunnel.take(number, request, parts)
        elif op == "forward":
            try:
                port = self.tunnel.listen(int(request["route"]), int(request["port"]))
                self.answer(number, {"done": True, "port": port})
            except OSError as exc:
                self.refuse(number, exc)
        elif op == "end programs":
            self.end_programs(number)
        elif op == "alive":
            return  # to have been heard is enough
        elif op == "cancel":
            call = self.calls.get(number)
            if isinstance(call, console.Console):
                call.cancel(number)
            elif call is not None:
                call.cancel()
        else:
            self.answer(number, {"done": True, **self._tell(op, request, parts)})

    def refuse(self, number: int, exc: OSError) -> None:
        """Answer that the sandbox does not allow it."""
        self.calls.pop(number, None)
        error = {"error": "os", "errno": exc.errno, "message": exc.strerror}
        self.answer(number, {"done": True, **error})

    def _tell(self, op: str, request: dict[str, Any], parts: list[bytes]) -> dict[str, Any]:
        if op == "hello":
            if request["version"] != VERSION:
                raise RuntimeError(f"version {request['version']} is not {VERSION}")
            self.python = console.python(self, parts[0].decode(), self.interpreter)
            self.spare.fill()
            self._listen_for(float(request["silence"]))
            return {"pid": os.getpid(), "python": sys.version.split()[0], "uid": self.who.uid}
        if op == "warm":
            for program in (self.python, self.bash):
                if program is not None and program.name in request["what"]:
                    program.warm()
            return {}
        if op == "stats":
            deleted = kernel.deleted_bytes(self.who)
            counts = {"oom_kills": self.oom.read(), "calls": len(self.calls), "deleted": deleted}
            return {**counts, **usage()}
        if op == "ping":
            return {}
        raise RuntimeError(f"there is no request {op!r}")


def usage() -> dict[str, Any]:
    """Return the supervisor's own time on the processor, seconds, and peak memory, bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser("supervisor")
    parser.add_argument("--user")
    parser.add_argument("--guard", type=int)
    parser.add_argument("--capabilities", type=int, default=0)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir", default=os.getcwd())
    parser.add_argument("--home")
    parser.add_argument("--lifetime", type=float)
    parser.add_argument("--rlimit", action="append", default=[])
    parser.add_argument("--memory", type=int)
    parser.add_argument("--sockets", type=int)
    parser.add_argument("--filter", default="")
    parser.add_argument("--cores", type=int, nargs="+", default=[])
    parser.add_argument("--parent", type=int)
    parser.add_argument("--remove")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve until stdin ends, or the lifetime is over; return the exit code."""
    return serve(parse(arguments))


def serve(flags: argparse.Namespace) -> int:
    """Serve like :func:`main`, with flags that are parsed."""
    try:
        supervisor = Supervisor(flags)
    except ValueError as exc:
        sys.exit(f"supervisor: {exc}")
    kernel.harden(alone=supervisor.switch)
    kernel.adopt_orphans()
    for number in ENDING:
        signal.signal(number, lambda *_: None)  # Box._bury sees it, between two events
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # root may send it to anybody: see seccomp.py
    if flags.parent:
        kernel.die_with_parent(signal.SIGTERM)
        if os.getppid() != flags.parent:
            supervisor.end("its parent is gone")
    # A fork copies what the collector touches; nothing here makes cycles that matter.
    gc.collect()
    gc.freeze()
    gc.disable()
    supervisor.loop.run()
    signal.set_wakeup_fd(-1)
    supervisor.leave()
    if flags.remove:
        import shutil

        os.chdir("/")
        shutil.rmtree(flags.remove, ignore_errors=True)
    return supervisor.code
