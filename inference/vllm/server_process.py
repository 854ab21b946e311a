"""The server's process: started with a log, ended with the run, never left behind."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vf.cluster.fleet import Command, Fleet, Resources
from vf.runtime import lifeline
from vf.runtime.errors import ConfigError

GRACE_SECONDS = 10.0  # to end by itself, before it is killed
TAIL_LINES = 15
LINE_LENGTH = 300
LOST = 255  # as an exit code: it ended without one
LOG_BYTES = 2_000_000  # of the log's end, in which a cause is looked for

_CAUSE = re.compile(r"\b\w*(?:Error|Exception): \S|\berror: \S")
# What every later request gets once the engine is dead, and what a dying server litters.
_ECHO = re.compile(r"EngineDeadError")
_LITTER = re.compile(r"leaked|nanobind|resource_tracker|skipped remainder|^\s*warnings\.warn")


class ServerLog:
    """What a server has written since this was made.

    Args:
        path: The file that its output is appended to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size if path.exists() else 0

    def last_line(self) -> str:
        """Return the last line of the log so far, shortened."""
        lines = self._lines()
        return lines[-1] if lines else ""

    def tail(self) -> str:
        """Return the last lines of the log, and before them the last that names an error."""
        lines = [line for line in self._lines() if not _LITTER.search(line)]
        last = lines[-TAIL_LINES:]
        causes = [line for line in lines if _CAUSE.search(line) and not _ECHO.search(line)]
        if causes and causes[-1] not in last:
            last = [causes[-1], "...", *last]
        return "\n".join(f"    {line}" for line in last)

    def _lines(self) -> list[str]:
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
        return [line[:LINE_LENGTH] for line in text.splitlines() if line.strip()]


class ServerProcess:
    """Runs a server until :meth:`stop`, or until this process ends.

    Args:
        command: The command to run.
        env: Its environment.
        log: File that its output is appended to.

    Raises:
        ConfigError: If the log cannot be written.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = ServerLog(log)
        reading, self._writing = os.pipe()
        guard = [sys.executable, "-I", "-S", lifeline.__file__, str(reading), str(GRACE_SECONDS)]
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*guard, *command],
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[reading],
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._writing)
            raise ConfigError(f"cannot run {command[0]} with its log {log}: {error}") from error
        finally:
            os.close(reading)

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End the server and all that it started. Safe to call twice."""
        if self._writing >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._writing, b".")
            os.close(self._writing)
            self._writing = -1
        try:
            self._process.wait(GRACE_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_line(self) -> str:
        """Return the last line of the log so far, shortened."""
        return self.log.last_line()

    def tail(self) -> str:
        """Return the last lines of the log; see :meth:`ServerLog.tail`."""
        return self.log.tail()


class PlacedServer:
    """Runs a server where a fleet places it, until :meth:`stop`, or until this process ends.

    Args:
        fleet: The machines that servers run on.
        resources: The resources that the server needs.
        command: The command to run, with its log.

    Attributes:
        host: Address of its machine.
        port: That stands for :data:`~vf.cluster.fleet.PORT` in its command.

    Raises:
        ConfigError: If there is no room for it, or no such program there.
        PlacementError: If the machine that it was to run on was lost.
    """

    def __init__(self, fleet: Fleet, resources: Resources, command: Command) -> None:
        assert command.log is not None
        command.log.parent.mkdir(parents=True, exist_ok=True)
        self._log = ServerLog(command.log)
        self._handle = fleet.place("server", resources, command)
        self.host, self.port = self._handle.host, self._handle.port

    @property
    def returncode(self) -> int | None:
        """The exit code, :data:`LOST` with its machine, or None while it runs."""
        code = self._handle.poll()
        if code is None:
            return None if self._handle.lost is None else LOST
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """End the server and all that it started. Safe to call twice."""
        self._handle.stop(GRACE_SECONDS)

    def last_line(self) -> str:
        """Return the last line of the log so far, shortened."""
        return self._log.last_line()

    def tail(self) -> str:
        """Return the last lines of the log, and why the server was lost, if it was."""
        lost = self._handle.lost
        return self._log.tail() + ("" if lost is None else f"\n    lost: {lost}")
