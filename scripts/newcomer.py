"""Somebody who types commands, and stops at the first thing that a newcomer would stop at."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENDING = 60.0  # seconds that Ctrl-C may take
DEADLINE = 600.0  # seconds for one command
TRACEBACK = "Traceback (most recent call last)"
# What the caller's own environment would add to a newcomer's.
LEFT_OUT = re.compile(r"PYTHON|VIRTUAL_ENV|PYTEST|VF_|OPENAI_|CI$|OMP_")


class Stopped(Exception):
    """What a newcomer stopped at."""


class Newcomer:
    """A shell in the folder of a clone, with the clone's own environment activated.

    Args:
        folder: The clone.
        silence: Seconds that a command may run without a word.
    """

    def __init__(self, folder: Path, silence: float) -> None:
        self.folder = folder
        self._silence = silence
        kept = {name: value for name, value in os.environ.items() if not LEFT_OUT.match(name)}
        path = f"{folder / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}"
        self._environ = kept | {"PATH": path, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}

    def type(self, command: str, *says: str, code: int = 0, never: str = "") -> str:
        """Run a line of shell to completion.

        Args:
            command: The line.
            *says: Words that the answer must contain, wherever its lines break.
            code: The exit code that it must have.
            never: Words that the answer must not contain.

        Returns:
            What it printed, on both streams.

        Raises:
            Stopped: It was silent for too long, printed a traceback, or answered otherwise.
        """
        started = time.monotonic()
        with self.running(command) as process:
            printed = "".join(self.listen(process, command))
        print(f"$ {command}  # {time.monotonic() - started:.1f} s", flush=True)
        words = " ".join(printed.split())
        wrong = [f"does not say {part!r}" for part in says if part not in words]
        if never and never in words:
            wrong.append(f"says {never!r}")
        if process.returncode != code:
            wrong.append(f"exit code {process.returncode}, expected {code}")
        if TRACEBACK in printed:
            wrong.append("a traceback")
        if wrong:
            raise Stopped(f"$ {command}\n{printed}\n=> {'; '.join(wrong)}")
        return printed

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a line of shell beside the next ones; at the end, Ctrl-C must end it.

        Raises:
            Stopped: Ctrl-C did not end it.
        """
        process = subprocess.Popen(
            ["bash", "-c", f"exec 2>&1; {command}"],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(ENDING)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise Stopped(f"$ {command}\n=> Ctrl-C did not end it") from None

    def wait_for(self, process: subprocess.Popen[bytes], words: str) -> None:
        """Wait until a command that runs beside the next ones has said something.

        Raises:
            Stopped: It ended first, or was silent for too long.
        """
        heard = ""
        for chunk in self.listen(process, "a server"):
            heard += chunk
            if words in heard:
                return
        raise Stopped(f"{heard}\n=> ended without saying {words!r}")

    def listen(self, process: subprocess.Popen[bytes], command: str) -> Iterator[str]:
        """Yield what a command prints until it ends.

        Raises:
            Stopped: It was silent for too long, or did not end.
        """
        assert process.stdout is not None
        deadline = time.monotonic() + DEADLINE
        heard = ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(self._silence):
                    raise Stopped(f"$ {command}\n{heard}\n=> silent for {self._silence:.0f} s")
                if time.monotonic() > deadline:
                    raise Stopped(f"$ {command}\n{heard}\n=> not done after {DEADLINE:.0f} s")
                chunk = os.read(process.stdout.fileno(), 65536).decode(errors="replace")
                if not chunk:
                    break
                heard += chunk
                yield chunk
        process.wait(ENDING)
