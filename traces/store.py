"""An append-only file of traces, one JSON line each, that survives being killed mid-write."""

from __future__ import annotations

import codecs
import os
import shlex
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from vf.runtime.errors import ConfigError
from vf.traces.image_files import keep_images
from vf.traces.images import by_reference
from vf.traces.trace import Trace, first_problem


class DamagedLine(ConfigError):
    """A complete line of a traces file is not a trace.

    Attributes:
        problem: Which line, and what is wrong with it; the message also says how to continue.
    """

    def __init__(self, file: Path, number: int, why: str) -> None:
        self.problem = f"{file}, line {number}: not a trace: {why}"
        name, aside = (shlex.quote(str(path)) for path in (file, f"{file}.damaged"))
        super().__init__(
            f"{self.problem}. To continue without it, put it aside: "
            f"sed -n {number}p {name} >> {aside} && sed -i.bak {number}d {name}"
        )


class TraceStore:
    """Append traces to a JSONL file, and read them back lazily.

    A process killed mid-write leaves at most one torn last line. Readers skip it; the next
    writer removes it, so it never ends up in the middle of the file. Images are files in the folder
    ``images`` beside it, written before the line that names them.

    Example::

        with TraceStore("traces.jsonl") as store:
            store.append(trace)
        rewards = [trace.reward for trace in TraceStore("traces.jsonl")]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._fd: int | None = None

    def append(self, trace: Trace, line: bytes | None = None) -> None:
        """Append one trace as one ``write``; safe from several threads.

        Args:
            trace: The trace to append.
            line: The same as :meth:`Trace.to_json` returned it, where it has been called already.

        Raises:
            OSError: If the disk is full or the path cannot be written.
        """
        line = (line or trace.to_json()) + b"\n"
        keep_images(chain(trace.held_images, by_reference(trace.task.prompt)[1]), self.path.parent)
        with self._lock:
            if self._fd is None:
                self._fd = self._open()
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                os.close(self._fd)
                self._fd = None  # the next append opens again, and removes what was written of it
                raise

    def __iter__(self) -> Iterator[Trace]:
        """Yield the traces in order, reading as it goes.

        A torn last line and empty lines are left out.

        Raises:
            DamagedLine: If a complete line is not a trace.
            ConfigError: If the file does not exist or cannot be read.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            raise ConfigError(f"no traces file at {self.path}") from None
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from None
        with file:
            for number, line in enumerate(file, start=1):
                if number == 1:  # Windows editors add a mark
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line.strip():
                    continue
                try:
                    trace = Trace.from_json(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise DamagedLine(self.path, number, first_problem(error)) from None
                yield trace.find_images(self.path.parent)

    def close(self) -> None:
        """Flush to disk and close; the store can be appended to again afterwards."""
        with self._lock:
            if self._fd is not None:
                os.fsync(self._fd)
                os.close(self._fd)
                self._fd = None

    def __enter__(self) -> TraceStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        end = os.fstat(fd).st_size
        tail_start = _last_line_start(fd, end)
        tail = os.pread(fd, end - tail_start, tail_start)
        if tail and not tail.endswith(b"\n"):
            try:
                Trace.from_json(tail)
            except ValueError:
                os.ftruncate(fd, tail_start)
            else:
                os.write(fd, b"\n")
        return fd


def _last_line_start(fd: int, end: int, block: int = 1 << 16) -> int:
    """Return the offset just after the last newline that is not the file's last byte."""
    position = end - 1
    while position > 0:
        start = max(0, position - block)
        newline = os.pread(fd, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
