"""A process of a fleet on this machine, which ends with this process, however that ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from vf.cluster.fleet import Command
from vf.runtime import lifeline
from vf.runtime.errors import ConfigError

GRACE_SECONDS = 10.0  # for a process whose run is gone, before it is killed
_SIGNALLED = 128  # the guard's exit code is this plus the signal's number
_KILLED = {_SIGNALLED + number for number in signal.Signals}


class Process:
    """Runs a command under a guard (:mod:`vf.runtime.lifeline`).

    Args:
        command: Program and arguments. A program ``python`` is this interpreter.
        environ: All its variables.
        output: File for its output; None for this process's output.
        folder: Working directory; None for this process's.
        through: Command that runs the guard, if that must not be a child of this process.

    Raises:
        ConfigError: If there is no such program.
    """

    def __init__(
        self,
        command: Command,
        environ: Mapping[str, str],
        output: IO[bytes] | int | None = None,
        folder: str | None = None,
        through: Sequence[str] = (),
    ) -> None:
        program, *rest = command.argv
        program = sys.executable if program == "python" else program
        if shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
            raise ConfigError(f"there is no program {program!r} on {socket.gethostname()}")
        reading, self._writing = os.pipe()
        guard = [sys.executable, "-I", "-S", lifeline.__file__, str(reading), str(GRACE_SECONDS)]
        try:
            self._guard = subprocess.Popen(
                [*through, *guard, program, *rest],
                env=dict(environ),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output if output is None else subprocess.STDOUT,
                pass_fds=[reading],
                start_new_session=True,  # Ctrl-C is this process's to answer
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs. Does not block."""
        code = self._guard.poll()
        return _SIGNALLED - code if code in _KILLED else code

    def wait(self) -> int:
        """Wait for its end and return its exit status."""
        self._guard.wait()
        code = self.poll()
        assert code is not None
        return code

    def ask(self, patience: float) -> None:
        """Let it and all that it started end, and do not wait for it; see :meth:`stop`."""
        if self._writing >= 0:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                os.write(self._writing, f"{patience:g}\n".encode())
            os.close(self._writing)
            self._writing = -1

    def stop(self, patience: float) -> None:
        """End it and all that it started: SIGTERM, and SIGKILL after so many seconds.

        Safe to call twice.
        """
        self.ask(patience)
        try:
            self._guard.wait(patience + lifeline.KILL_SECONDS + 5)
        except subprocess.TimeoutExpired:  # the guard has been stopped or cannot kill
            self._guard.kill()
            self._guard.wait()


def open_log(log: Path) -> BinaryIO:
    """Return a file that output can be appended to, with the folders that lead to it.

    Raises:
        ConfigError: If the file cannot be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        raise ConfigError(f"the log {log} cannot be written: {error.strerror}") from error
