"""Run a program, to its end or in the background."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from vf.sandbox.inside import kernel
from vf.sandbox.inside.box import Box, Output
from vf.sandbox.inside.feed import Feed, Flow
from vf.sandbox.inside.keeper import Keeper, Stage
from vf.sandbox.inside.loop import Capture, Outlet, Timer

KILL_SECONDS = 8.0


class Staged:
    """A process that waits to become a program, and our ends of its pipes."""

    def __init__(self, box: Box, who: kernel.Identity) -> None:
        """Make it.

        Raises:
            OSError: There can be no further process, or no further descriptor.
        """
        pipes: list[tuple[int, int]] = []
        try:
            with who.maker():
                for _ in range(3):
                    pipes.append(os.pipe())
            (in_r, self.in_w), (self.out_r, out_w), (self.err_r, err_w) = pipes
            stage = Stage(who, {0: in_r, 1: out_w, 2: err_w}, box.rlimits, box.walls)
            self.keeper = Keeper(box.loop, stage)
        except OSError:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise
        for fd in (in_r, out_w, err_w):
            os.close(fd)
        box.keep(self.keeper)

    def drop(self) -> None:
        """Give it up."""
        for fd in (self.in_w, self.out_r, self.err_r):
            os.close(fd)


class Spare:
    """Keeps one process ready for the model's user, so that a program starts at once."""

    def __init__(self, box: Box) -> None:
        """Keep none yet."""
        self._box = box
        self._ready: Staged | None = None

    def take(self, who: kernel.Identity) -> Staged:
        """Return a process for a user.

        Raises:
            OSError: There is none ready, and there can be no further one.
        """
        ready = self._ready
        if ready is None or who != self._box.who:
            return Staged(self._box, who)
        self._ready = None
        if ready.keeper.alive:
            return ready
        ready.drop()
        return Staged(self._box, who)

    def fill(self) -> None:
        """Make one ready, if that is possible."""
        if self._ready is None:
            with contextlib.suppress(OSError):
                self._ready = Staged(self._box, self._box.who)


class Execution:
    """One ``exec`` request."""

    def __init__(
        self, box: Box, spare: Spare, number: int, request: dict[str, Any], data: bytes
    ) -> None:
        """Start it.

        Args:
            box: Where.
            spare: Holds the process that is ready to become the program.
            number: The request's id.
            request: Its header.
            data: The first piece of stdin.

        Raises:
            ValueError: There is no such user.
            OSError: There can be no further process, or no further descriptor.
        """
        self._box, self._number = box, number
        self._began = time.monotonic()
        self._oom = box.oom.read()
        self._timed_out = False
        self._code: int | None = None
        self._trouble = ""
        self._timer: Timer = []
        who = box.identity(request.get("user"))
        staged = spare.take(who)
        box.calls[number] = self
        self._flow: Flow | None = None
        if request.get("stream"):
            flow = self._flow = Flow(box, self._send)
            self._out: Capture = Feed(flow, 1, staged.out_r)
            self._err: Capture = Feed(flow, 2, staged.err_r)
        else:
            self._out = Capture(box.loop, staged.out_r, int(request["max_output"]))
            self._err = Capture(box.loop, staged.err_r, int(request["max_output"]))
        self._stdin = Outlet(box.loop, staged.in_w, self._consumed)
        self._keeper = staged.keeper
        cwd = os.path.join(box.workdir, request["cwd"]) if request.get("cwd") else box.workdir
        env = {**box.variables(who), "PWD": cwd, **(request.get("env") or {})}
        self._keeper.run(self, request["cmd"], env, cwd)
        if request["timeout"] is not None:
            self._timer = box.loop.later(float(request["timeout"]), self._late)
        self.feed(data, end=bool(request["whole"]))
        # While the program starts.
        spare.fill()

    def feed(self, data: bytes, *, end: bool) -> None:
        """Give the program more of its stdin."""
        self._stdin.send(data)
        if end:
            self._stdin.end()

    def took(self, count: int) -> None:
        """Send more of its output: the client has taken so many bytes."""
        if self._flow is not None:
            self._flow.took(count)

    def cancel(self) -> None:
        """Kill everything that it started; then answer."""
        self._late()

    def _send(self, stream: int, data: bytes) -> None:
        self._box.answer(self._number, {"out": stream}, data)

    def _consumed(self, count: int) -> None:
        if self._number in self._box.calls:
            self._box.answer(self._number, {"ack": count})

    def _late(self) -> None:
        if self._code is None and not self._timed_out:
            self._timed_out = True
            self._timer.clear()
            self._timer = self._box.loop.later(KILL_SECONDS, self._undead)
            self._keeper.kill()

    def _undead(self) -> None:
        self._box.lost(self._number, "processes survived a timeout")

    def exited(self, code: int, trouble: str) -> None:
        """Answer, unless there is still something to kill."""
        if not self._timed_out:
            self._code, self._trouble = code, trouble
            self._finish(code)

    def settled(self) -> None:
        """Nothing to do: no ``signal`` is sent."""

    def ended(self) -> None:
        """Answer that the time was over, now that nothing is left."""
        if self._timed_out:
            self._finish(137)
        elif self._code is None:
            self._box.lost(self._number, "the keeper of a program was killed")

    def _finish(self, code: int) -> None:
        self._timer.clear()
        self._stdin.close()
        result: dict[str, Any] = {
            "returncode": code,
            "timed_out": self._timed_out,
            "oom_killed": code == 137 and not self._timed_out and self._box.oomed(self._oom),
            "duration": time.monotonic() - self._began,
        }
        if self._trouble:
            result["note"] = self._trouble
        self._answer(result, self._out.take(), self._err.take())
        # What it left in the background may go on writing, to nobody.
        self._out.keep(0)
        self._err.keep(0)

    def _answer(self, result: dict[str, Any], out: Output, err: Output) -> None:
        self._box.finish(self._number, result, out, err)


class Background(Execution):
    """A program that :class:`Backgrounds` started: it has no timeout, and may be sent input."""

    def __init__(
        self, backgrounds: Backgrounds, spare: Spare, number: int, request: dict[str, Any]
    ) -> None:
        """Start it; see :class:`Execution`."""
        self._all, self._process = backgrounds, int(request["process"])
        self._deadline: Timer = []
        self.killers: list[int] = []  # requests that wait until nothing is left of it
        always = {"stream": True, "timeout": None, "whole": False}
        super().__init__(backgrounds.box, spare, number, {**request, **always}, b"")
        del self._box.calls[number]

    def cancel(self) -> None:
        """Kill everything that it started, also where it has ended itself."""
        if not self._keeper.killed:
            self._deadline = self._box.loop.later(KILL_SECONDS, self._undead)
            self._keeper.kill()

    def ended(self) -> None:
        """Say that nothing is left of it."""
        self._deadline.clear()
        if self._code is None:
            self._box.lost(0, "the keeper of a program was killed")
        self._all.drop(self._process)
        self._tell({"gone": True})
        for number in self.killers:
            self._box.answer(number, {"done": True})

    def _send(self, stream: int, data: bytes) -> None:
        self._tell({"out": stream}, data)

    def _consumed(self, count: int) -> None:
        self._tell({"ack": count, "open": self._stdin.open})

    def _undead(self) -> None:
        self._box.lost(0, "processes survived a kill")

    def _answer(self, result: dict[str, Any], out: Output, err: Output) -> None:
        missing = [out[2], err[2]]
        self._tell({"done": True, **result, "missing": missing}, *out[:2], *err[:2])

    def _tell(self, header: dict[str, Any], *parts: bytes) -> None:
        self._box.answer(0, {"process": self._process, **header}, *parts)


class Backgrounds:
    """All programs in the background, by the client's number for them."""

    def __init__(self, box: Box) -> None:
        """Have none yet."""
        self.box = box
        self._found: dict[int, Background] = {}

    def start(self, spare: Spare, number: int, request: dict[str, Any]) -> None:
        """Start one.

        Raises:
            ValueError: There is no such user.
            OSError: There can be no further process, or no further descriptor.
        """
        self._found[int(request["process"])] = Background(self, spare, number, request)

    def take(self, number: int, request: dict[str, Any], parts: list[bytes]) -> None:
        """Take a frame that belongs to one."""
        program = self._found.get(number)
        if program is None:
            return  # nothing is left of it, and the client did not know yet
        if parts or request.get("end"):
            program.feed(parts[0] if parts else b"", end=bool(request.get("end")))
        if "took" in request:
            program.took(int(request["took"]))
        if request.get("kill"):
            program.cancel()

    def kill(self, number: int, request: dict[str, Any]) -> None:
        """Kill one; answer once nothing is left of it."""
        program = self._found.get(int(request["process"]))
        if program is None:
            self.box.answer(number, {"done": True})
            return
        program.killers.append(number)
        program.cancel()

    def drop(self, number: int) -> None:
        """Know one no more."""
        self._found.pop(number, None)
