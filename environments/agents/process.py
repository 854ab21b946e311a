"""A program as a child process: its output is bounded, and nothing is left running."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vf.runtime import lifeline
from vf.runtime.errors import EnvironmentFailure

GRACE_SECONDS = 1.0  # for a program that is stopped to end by itself
PATIENCE = 5.0  # seconds past the guard's own limits, after which it is given up
MOST_STDOUT = 400_000  # bytes that are kept: the last ones
MOST_STDERR = 20_000
_PIECE = 2**16


@dataclass(slots=True)
class Tail:
    """The end of a stream.

    Attributes:
        most: Bytes that are kept.
        size: Bytes that there were.
    """

    most: int
    size: int = 0
    _data: bytearray = field(default_factory=bytearray)

    def add(self, piece: bytes) -> None:
        """Take more."""
        self.size += len(piece)
        self._data += piece
        if len(self._data) > 2 * self.most:
            del self._data[: -self.most]

    def text(self) -> str:
        """Return what is kept; what is not UTF-8 is replaced."""
        return self._data[-self.most :].decode("utf-8", "replace")


@dataclass(slots=True)
class Output:
    """What a program has written so far, the ends of both streams."""

    stdout: Tail = field(default_factory=lambda: Tail(MOST_STDOUT))
    stderr: Tail = field(default_factory=lambda: Tail(MOST_STDERR))


async def run_process(
    command: Sequence[str], *, folder: Path, environ: Mapping[str, str], output: Output
) -> int:
    """Run a program to completion; cancelled, it is ended with everything that came of it.

    A guard runs it (:mod:`vf.runtime.lifeline`), which also ends it when this process dies.

    Args:
        command: Program and arguments.
        folder: The working directory.
        environ: Its whole environment.
        output: A buffer that is filled while the program runs.

    Returns:
        Its exit code, 128 + n where signal n ended it.

    Raises:
        EnvironmentFailure: If the program cannot be run.
    """
    reading, writing = os.pipe()
    guard = [sys.executable, "-I", "-S", lifeline.__file__, str(reading), str(GRACE_SECONDS)]
    work: list[asyncio.Task[object]] = []
    try:
        process = await asyncio.create_subprocess_exec(
            *guard,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=dict(environ),
            pass_fds=[reading],
            start_new_session=True,
        )
        streams = [(process.stdout, output.stdout), (process.stderr, output.stderr)]
        work = [asyncio.create_task(_read(stream, tail)) for stream, tail in streams]
        work.append(asyncio.create_task(process.wait()))
        await asyncio.wait(work)  # the guard's end is the end of all that could write
        code = await process.wait()
        return code if code >= 0 else 128 - code  # below 0, somebody killed the guard
    except OSError as error:
        raise EnvironmentFailure(f"cannot run {command[0]}: {error}") from error
    finally:
        os.close(reading)
        os.close(writing)  # now the guard ends what still runs
        if work:
            limit = GRACE_SECONDS + lifeline.KILL_SECONDS + PATIENCE
            _, late = await asyncio.wait(work, timeout=limit)
            for task in late:
                task.cancel()


async def _read(stream: asyncio.StreamReader | None, tail: Tail) -> None:
    while stream is not None and (piece := await stream.read(_PIECE)):
        tail.add(piece)
