"""A real pseudo-terminal with a display on it, and an emulator that reads its screen back."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyte
import pytest

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"

# A run without a trainer: it does what it is told through a named pipe.
RUN = """
import os, sys, time, warnings
from vf.traces.messages import Message, ToolCall
from vf.traces.task import Task
from vf.traces.trace import Score, StopReason, ToolEvent, Trace
from vf.runtime.signals import orderly_end
from vf.trainer.watching.display import TerminalDisplay

if os.getsid(0) == os.getpid():
    os.open(os.ttyname(1), os.O_RDWR)  # a session's leader gets its terminal by opening it

def trace(name, *said, reward=0.5):
    made = Trace("e", Task(name, "p"), seed=0)
    made.messages = [Message("user", "p"), *(Message("assistant", each) for each in said)]
    made.prompt_messages, made.stop_reason = 1, StopReason.TERMINATED
    made.score = Score(reward, reward)
    return made

def step(number, reward, **more):
    times = {"time/generate": 3.0, "time/train": 1.0, "time/total": 4.0}
    display.step({"step": number, "reward/mean": reward, "loss": 0.25, **times, **more})

display = TerminalDisplay()
with open(sys.argv[1]) as orders:
    for order in orders:
        exec(order)
"""


class Terminal:
    """A terminal of some size with a process on it."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self.script = folder / "run.py"
        self.script.write_text(RUN)
        self.pipe = folder / "orders"
        os.mkfifo(self.pipe)
        self._orders = os.open(self.pipe, os.O_RDWR)
        self.master, self._slave = pty.openpty()
        self._ends: tuple[int, ...] = (self.master, self._slave)
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.resize(columns, rows)
        self.mode = termios.tcgetattr(self.master)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.script), str(self.pipe)]

    def run(self, *command: str, stdin: int | None = None, **environ: str) -> None:
        """Start a process that has this terminal for its own, and the display by default."""
        dropped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        root = str(Path(__file__).resolve().parents[3])
        self.process = subprocess.Popen(
            command or self.command,
            stdin=self._slave if stdin is None else stdin,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", "PYTHONPATH": root, **environ},
        )

    def tell(self, *orders: str) -> None:
        """Have the run execute lines of Python."""
        os.write(self._orders, "".join(f"{order}\n" for order in orders).encode())

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    @property
    def text(self) -> str:
        """What is on the screen now."""
        self._read(0)
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def printed(self) -> str:
        """What was written since the dashboard was last left, without colours."""
        self._read(0)
        return re.sub(r"\x1b\[[0-9;]*m", "", self.raw.rpartition(LEFT)[2].decode())

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.master)

    def sees(self, *texts: str) -> bool:
        """Wait until all texts are on the screen at once."""
        return self.until(lambda: all(text in self.text for text in texts))

    def prints(self, text: str) -> bool:
        """Wait until a text was written since the dashboard was left."""
        return self.until(lambda: LEFT in self.raw and text in self.printed)

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

    def _read(self, seconds: float) -> None:
        while select.select([self.master], [], [], seconds)[0]:
            data = os.read(self.master, 65536)
            self.raw += data
            self._stream.feed(data)
            seconds = 0.0

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


@pytest.fixture
def shell_line() -> Callable[[Terminal], str]:
    """Return the line that starts the run in a shell on its terminal."""
    return lambda terminal: shlex.join(terminal.command)
