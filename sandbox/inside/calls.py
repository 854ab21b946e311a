"""Run a program, to completion or in the background."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from vf.sandbox.inside import kernel
from vf.sandbox.inside.box import Box, Output
from vf.sandbox.inside.feed import Feed, Flow
from vf.sandbox.inside.keeper import Keeper
from vf.sandbox.inside.loop import Capture, Outlet, Timer

KILL_SECONDS = 8.0
KILLED = 137
MOST_READY = 2
REFILL_SECONDS = 0.02  # by then a short program has ended, and its keeper is back


def pipes(who: kernel.Identity) -> tuple[dict[int, int], tuple[int, int, int]]:
    """Open a program's three pipes; return its ends, by their numbers there, and ours.

    Raises:
        OSError: If no further descriptor can be opened.
    """
    made: list[tuple[int, int]] = []
    try:
        with who.maker():
            for _ in range(3):
                made.append(os.pipe())
    except OSError:
        for fd in (fd for pipe in made for fd in pipe):
            os.close(fd)
        raise
    (in_r, in_w), (out_r, out_w), (err_r, err_w) = made
    return {0: in_r, 1: out_w, 2: err_w}, (in_w, out_r, err_r)


class Spare:
    """Keeps processes ready for the model's user, so that a program starts at once.

    A keeper whose program has ended comes back, as long as there are few. Two, since it takes a
    moment until the next process waits below it.
    """

    def __init__(self, box: Box) -> None:
        """Start without ready processes."""
        self._box = box
        self._ready: list[Keeper] = []
        self._timer: Timer = []

    def take(self, who: kernel.Identity) -> Keeper:
        """Return a process for a user.

        Raises:
            OSError: If none is ready, and no further one can be started.
        """
        mine = who == self._box.who
        if mine and not self._timer:
            self._timer = self._box.loop.later(REFILL_SECONDS, self._refill)
        while mine and self._ready:
            keeper = self._ready.pop(0)
            if keeper.alive and not keeper.killed:
                return keeper
        return self._make(who)

    def fill(self) -> None:
        """Make one ready, if that is possible."""
        self._ready = [keeper for keeper in self._ready if keeper.alive and not keeper.killed]
        if not self._ready:
            with contextlib.suppress(OSError):
                self._ready.append(self._make(self._box.who))

    def _refill(self) -> None:
        self._timer.clear()
        self.fill()

    def _make(self, who: kernel.Identity) -> Keeper:
        box = self._box
        back = self._back if who == box.who else None
        keeper = Keeper(box.loop, box.stage(who), back)
        box.keep(keeper)
        return keeper

    def _back(self, keeper: Keeper) -> None:
        if len(self._ready) < MOST_READY:
            self._ready.append(keeper)
        else:
            keeper.close()


class Execution:
    """One ``exec`` request."""

    def __init__(
        self, box: Box, spare: Spare, number: int, request: dict[str, Any], data: bytes
    ) -> None:
        """Start it.

        Args:
            box: The supervisor's state.
            spare: The processes that are ready to become the program.
            number: The request's id.
            request: Its header.
            data: The first chunk of stdin.

        Raises:
            ValueError: If there is no such user.
            OSError: If no further process can be started, or descriptor opened.
        """
        self._box, self._number = box, number
        self._began = time.monotonic()
        self._oom = box.oom.read()
        self._timed_out = False
        self._code: int | None = None
        self._trouble = ""
        self._timer: Timer = []
        who = box.identity(request.get("user"))
        cwd = os.path.join(box.workdir, request["cwd"]) if request.get("cwd") else box.workdir
        env = {**box.variables(who), "PWD": cwd, **(request.get("env") or {})}
        theirs, (in_w, out_r, err_r) = pipes(who)
        try:
            self._keeper = spare.take(who)
            self._keeper.run(self, request["cmd"], env, cwd, theirs)
        except OSError:
            for fd in (in_w, out_r, err_r):
                os.close(fd)
            raise
        finally:
            for fd in theirs.values():
                os.close(fd)
        box.calls[number] = self
        self._flow: Flow | None = None
        if request.get("stream"):
            flow = self._flow = Flow(box, self._send)
            self._out: Capture = Feed(flow, 1, out_r)
            self._err: Capture = Feed(flow, 2, err_r)
        else:
            self._out = Capture(box.loop, out_r, int(request["max_output"]))
            self._err = Capture(box.loop, err_r, int(request["max_output"]))
        self._stdin = Outlet(box.loop, in_w, self._consumed)
        if request["timeout"] is not None:
            self._timer = box.loop.later(float(request["timeout"]), self._late)
        self.feed(data, end=bool(request["whole"]))

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
        """Do nothing: no ``signal`` is sent."""

    def ended(self) -> None:
        """Answer, after a timeout or a kill, that nothing is left."""
        if self._timed_out:
            self._finish(KILLED)
        elif self._code is None and self._keeper.killed:
            self.exited(KILLED, "")
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
        # What it left in the background may keep writing, to nobody.
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
        """Report that nothing is left of it."""
        self._deadline.clear()
        super().ended()
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
        """Start without programs."""
        self.box = box
        self._programs: dict[int, Background] = {}

    def start(self, spare: Spare, number: int, request: dict[str, Any]) -> None:
        """Start one.

        Raises:
            ValueError: If there is no such user.
            OSError: If no further process can be started, or descriptor opened.
        """
        self._programs[int(request["process"])] = Background(self, spare, number, request)

    def take(self, number: int, request: dict[str, Any], parts: list[bytes]) -> None:
        """Take a frame that belongs to one."""
        program = self._programs.get(number)
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
        program = self._programs.get(int(request["process"]))
        if program is None:
            self.box.answer(number, {"done": True})
            return
        program.killers.append(number)
        program.cancel()

    def drop(self, number: int) -> None:
        """Remove a program of which nothing is left."""
        self._programs.pop(number, None)
