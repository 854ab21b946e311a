"""A real pseudo-terminal with a display on it, and an emulator that reads its screen back."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

# A run without a trainer: it executes the lines of Python that come through a named pipe.
RUN = """
import logging, os, sys, time, warnings
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Score, Trace
from vf.runtime.interrupts import orderly_end
from vf.trainer.watching.terminal import TerminalDisplay

os.open(os.ttyname(1), os.O_RDWR)  # a session's leader gets its terminal by opening it

def trace(name, *said):
    made = Trace("e", Task(name, "p"), seed=0, score=Score(0.5, 0.5))
    made.messages = [Message("user", "p"), *(Message("assistant", each) for each in said)]
    return made

def step(number, reward, **more):
    times = {"time/generate": 3.0, "time/train": 1.0, "time/total": 4.0}
    display.step({"step": number, "reward/mean": reward, "loss": 0.25, **times, **more})

def wait(seconds=1000.0):
    with orderly_end(launched=False):
        try:
            print("it waits")
            time.sleep(seconds)
        finally:
            display.stop()
            open(sys.argv[1] + "-stopped", "w").close()

display = TerminalDisplay()
with open(sys.argv[1]) as orders:
    for order in orders:
        exec(order)
"""


class Terminal:
    """A terminal of some size with a process on it."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self.pipe = folder / "orders"
        os.mkfifo(self.pipe)
        self._orders = os.open(self.pipe, os.O_RDWR)
        self._master, self._slave = pty.openpty()
        self._ends: tuple[int, ...] = (self._master, self._slave)
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        pyte = pytest.importorskip("pyte")

        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, script: str = RUN, **environ: str) -> None:
        """Start a process that has this terminal for its own."""
        dropped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_INTERACTIVE")
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(self.pipe)],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", **environ},
        )

    def order(self, *lines: str) -> None:
        """Make the run execute lines of Python."""
        os.write(self._orders, "".join(f"{line}\n" for line in lines).encode())

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def rows(self) -> list[str]:
        """What is on the screen now."""
        self._read(0)
        return [row.rstrip() for row in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def printed(self) -> str:
        """All that was written, without colours and moves of the cursor."""
        self._read(0)
        return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.raw.decode())

    def sees(self, *texts: str) -> bool:
        """Wait until all texts are on the screen together."""
        return self.until(lambda: all(text in self.text for text in texts))

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            self._read(0.05)
        return condition()

    def ends(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        assert self.process is not None
        process = self.process
        assert self.until(lambda: process.poll() is not None), self.text
        return int(process.returncode)

    def hang_up(self) -> None:
        """Close the terminal's window."""
        for fd in self._ends:
            os.close(fd)
        self._ends = ()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.hang_up()
        os.close(self._orders)

    def _read(self, seconds: float) -> None:
        while select.select([self._master], [], [], seconds)[0]:
            data = os.read(self._master, 65536)
            self.raw += data
            self._stream.feed(data)
            seconds = 0.0


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Return a factory of terminals; what runs on them is killed when the test ends."""
    with ExitStack() as stack:

        def make(columns: int = 80, rows: int = 24) -> Terminal:
            folder = tmp_path / f"terminal-{columns}x{rows}"
            folder.mkdir()
            made = Terminal(folder, columns, rows)
            stack.callback(made.close)
            return made

        yield make
