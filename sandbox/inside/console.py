"""Programs that keep their state between calls: the persistent Python and the persistent shell.

Both use the protocol that interpreter.py describes. The code is in a memory file, so that a shell
need not read it from a pipe, byte by byte.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from typing import Any, NamedTuple

from vf.sandbox.inside import kernel
from vf.sandbox.inside.box import Box
from vf.sandbox.inside.calls import KILL_SECONDS
from vf.sandbox.inside.keeper import Keeper
from vf.sandbox.inside.loop import Capture, Timer

GO, ANSWER, CODE = 100, 101, 102  # descriptors that code rarely uses
INTERRUPT_SECONDS = (
    2.0  # once what the call started is dead; a busy machine takes its time for that
)
MISSING = 127  # a shell's exit code for a program that does not exist
INTERRUPTED = 130  # a shell's exit code after Ctrl-C
KEPT = 100_000  # bytes of stdout, and of stderr

# The shell reads its script from GO: first this, then RUN for each call. No loop of vf-rl is around
# the code, which is sourced, not run in a function, so that `declare` makes what lasts. On SIGUSR1,
# once nothing runs in the foreground, the rest of the code is skipped: a DEBUG trap that returns 2
# under extdebug leaves the function or sourced file that it is in.
SHELL = rb"""
exec 100<&-
BASH_ARGV0=bash __vf_rc=0 __vf_stopped=
__vf_status() { builtin return "$1"; }
__vf_stop() {
  __vf_stopped=1
  builtin trap '[[ $BASH_SOURCE == /proc/self/fd/100 ]] || __vf_status 2' DEBUG
  builtin shopt -s extdebug
}
__vf_begin() {
  builtin trap __vf_stop USR1
  [[ $- == *e* ]] || builtin return "$__vf_rc"
}
__vf_end() {
  [[ -z $__vf_stopped ]] || { builtin trap - DEBUG; builtin shopt -u extdebug; __vf_stopped=; }
  __vf_rc=$2
  builtin echo "$1 $2" >&101
}
"""
# The redirections hide what `set -x` would print of the first and the last command.
RUN = (
    b"{ __vf_begin; } 2>/dev/null; builtin . /proc/self/fd/102 </dev/null 101>&-; "
    b'{ __vf_end %d "$?"; } 2>/dev/null\n'
)
# The same for any other shell, which may know no descriptor above 9. It has no DEBUG trap: a signal
# ends it.
PLAIN_SHELL = b'__vf_rc=0\n__vf_status() { return "$1"; }\n'
PLAIN_RUN = (
    b'__vf_status "$__vf_rc"; . /proc/self/fd/102 </dev/null; __vf_rc=$?; '
    b'echo "%d $__vf_rc" >/proc/self/fd/101\n'
)


class Program(NamedTuple):
    """What a console runs; it reads ``first`` from GO at the start, and ``run`` for each call."""

    argv: list[str]
    first: bytes = b""
    run: bytes = b"%d\n"


class Call(NamedTuple):
    """One request."""

    number: int
    code: bytes
    timeout: float


class Console:
    """One persistent program; calls run one after the other."""

    def __init__(self, box: Box, name: str, programs: list[Program], interrupt: int) -> None:
        """Prepare it; the program starts with the first call, or when warmed.

        Args:
            box: The supervisor's state.
            name: The program's name in messages.
            programs: The programs to run: the first of them that is installed.
            interrupt: The signal that interrupts it.
        """
        self._box, self._interrupt = box, interrupt
        self._program, *self._others = programs
        self.name = name
        self._waiting: deque[Call] = deque()
        self._keeper: Keeper | None = None
        self._call: Call | None = None
        self._timer: Timer = []
        self._timed_out = self._settling = False
        self._orders = 0
        self._note = ""
        self._out: Capture | None = None
        self._err: Capture | None = None

    def submit(self, call: Call) -> None:
        """Run the call when the ones before are done."""
        self._waiting.append(call)
        self._next()

    def cancel(self, number: int) -> None:
        """Stop a call as if its time were over."""
        if self._call is not None and self._call.number == number:
            self._late()
        for call in list(self._waiting):
            if call.number == number:
                self._waiting.remove(call)
                self._box.finish(number, {"returncode": INTERRUPTED}, (b"", b"", 0), (b"", b"", 0))

    def warm(self) -> None:
        """Start the program, if it does not run."""
        if self._keeper is not None:
            return
        box = self._box
        fds: dict[int, int] = {0: os.dup(box.null)}
        ours: list[int] = []
        try:
            with box.who.maker():
                for target in (1, 2, ANSWER):
                    end, fds[target] = os.pipe()
                    ours.append(end)
                fds[GO], end = os.pipe()
                ours.append(end)
                fds[CODE] = os.memfd_create("code")
                ours.append(fds[CODE])
            out_r, err_r, self._answer, self._go, self._code = ours
            os.set_blocking(self._go, False)
            os.set_blocking(self._answer, False)
            self._out = Capture(box.loop, out_r, KEPT)
            self._err = Capture(box.loop, err_r, KEPT)
            self._keeper = Keeper(box.loop, box.stage(box.who))
            box.keep(self._keeper)
            self._keeper.run(self, self._program.argv, box.env, box.workdir, fds)
            self._partial, self._orders = b"", 0
            self._exit: tuple[int, str] | None = None
            box.loop.watch(self._answer, self._read)
            os.write(self._go, self._program.first)
        except OSError:
            if self._keeper is not None:
                self._keeper.close()
                self._keeper = None
            self._out = self._err = None
            for fd in ours:
                box.loop.close(fd)
            raise
        finally:
            for target, fd in fds.items():
                if target != CODE:
                    os.close(fd)

    def _next(self) -> None:
        if self._call is not None or not self._waiting:
            return
        if self._keeper is not None and self._keeper.killed:
            return  # ended() comes back here
        call = self._call = self._waiting.popleft()
        self._began, self._since = time.monotonic(), kernel.now()
        self._timed_out = self._settling = False
        self._oom = self._box.oom.read()
        try:
            self.warm()
            os.ftruncate(self._code, 0)
            self._write(call.code)
        except OSError as exc:
            self._finish(126, f"cannot start {self.name}: {exc.strerror}")
            return
        # Nobody knows it before, so earlier code cannot have answered already.
        self._token = int.from_bytes(os.urandom(7), "big")
        with contextlib.suppress(OSError):  # it is gone: its keeper will say so
            os.write(self._go, self._program.run % self._token)
        self._timer = self._box.loop.later(call.timeout, self._late)

    def _write(self, code: bytes) -> None:
        data, at = memoryview(code), 0
        while at < len(data):
            at += os.pwrite(self._code, data[at:], at)

    def _read(self) -> None:
        try:
            data = os.read(self._answer, 4096)
        except BlockingIOError:
            return
        if not data:
            self._box.loop.forget(self._answer)
        self._partial = (self._partial + data)[-4096:]
        while b"\n" in self._partial:
            line, _, self._partial = self._partial.partition(b"\n")
            number, _, code = line.partition(b" ")
            # A late answer to an earlier call, or nonsense that the code wrote there, does not
            # count.
            if self._call is not None and number == b"%d" % self._token and code.isdigit():
                self._answered(int(code) & 255)

    def _answered(self, code: int) -> None:
        if not self._timed_out:
            self._finish(code)
        elif not self._settling and self._keeper is not None and not self._keeper.killed:
            # Again: something may have been started while the first interrupt was on its way.
            self._settling = True
            self._signal(0)

    def _signal(self, number: int) -> None:
        assert self._keeper is not None
        self._orders += 1
        self._keeper.signal(number, self._since)

    def settled(self) -> None:
        """Answer, once the last order is done: whatever the interrupted code started is dead."""
        self._orders -= 1
        if self._orders:
            return
        if self._settling:
            self._finish(INTERRUPTED)
        elif self._timed_out and self._keeper is not None and not self._keeper.killed:
            self._timer.clear()
            self._timer = self._box.loop.later(INTERRUPT_SECONDS, self._kill)

    def _late(self) -> None:
        if self._timed_out or self._keeper is None:
            return
        self._timed_out = True
        self._timer.clear()
        self._timer = self._box.loop.later(KILL_SECONDS, self._kill)
        self._signal(self._interrupt)

    def _kill(self) -> None:
        assert self._keeper is not None
        self._settling = False
        self._keeper.kill()
        self._timer = self._box.loop.later(KILL_SECONDS, self._undead)

    def _undead(self) -> None:
        number = self._call.number if self._call is not None else 0
        self._box.lost(number, f"processes of {self.name} survived a kill")

    def exited(self, code: int, trouble: str) -> None:
        """Kill what the program left when it ended; then answer."""
        self._exit = (code, trouble)
        assert self._keeper is not None
        if not self._keeper.killed:
            self._timer.clear()
            self._kill()

    def ended(self) -> None:
        """Answer: the program is gone, and everything that it started."""
        code, trouble = self._exit or (137, "")
        if trouble and code == MISSING:
            trouble = f"the image has nothing that can be {self.name}: {trouble}"
        out, err = self._out, self._err
        self._timer.clear()
        self._keeper = None
        for fd in (self._go, self._answer, self._code):
            self._box.loop.close(fd)
        note = trouble or f"{self.name} ended: its state is lost"
        if self._timed_out:
            note = f"{self.name} did not stop in time and was killed: its state is lost"
        if trouble and code == MISSING and self._others and not self._timed_out:
            self._program = self._others.pop(0)
            if self._call is not None:
                self._waiting.appendleft(self._call)
                self._call = None
            self._next()
        elif self._call is None:
            self._note = "" if trouble else note
            self._next()
        else:
            self._finish(137 if self._timed_out else code, note)
        for stream in (out, err):
            if stream is not None:
                stream.close()

    def _finish(self, code: int, note: str = "") -> None:
        call = self._call
        assert call is not None
        self._timer.clear()
        notes = [text for text in (self._note, note) if text]
        self._note = ""
        result: dict[str, Any] = {
            "returncode": code,
            "timed_out": self._timed_out,
            "oom_killed": code == 137 and not self._timed_out and self._box.oomed(self._oom),
            "duration": time.monotonic() - self._began,
        }
        if notes:
            result["note"] = "\n".join(notes)
        nothing = (b"", b"", 0)
        out, err = (s.take() if s is not None else nothing for s in (self._out, self._err))
        self._box.finish(call.number, result, out, err)
        # What a thread or a background job writes from now on belongs to the next call.
        for stream in (self._out, self._err):
            if stream is not None:
                stream.keep(KEPT)
        self._call, self._timed_out, self._settling = None, False, False
        self._next()


def python(box: Box, source: str, executable: str) -> Console:
    """Return the persistent Python."""
    program = Program([executable, "-u", "-c", source])
    return Console(box, "the interpreter", [program], signal.SIGINT)


def bash(box: Box) -> Console:
    """Return the persistent shell."""
    script = f"/proc/self/fd/{GO}"
    bash = Program(["bash", "--noprofile", "--norc", script], SHELL, RUN)
    return Console(
        box, "the shell", [bash, Program(["sh", script], PLAIN_SHELL, PLAIN_RUN)], signal.SIGUSR1
    )
