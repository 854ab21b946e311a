"""Read and write files and folders, with the rights of the model's user.

Each time a child of the supervisor does it: it acts as that user (so that permissions, symbolic
links and /proc are judged as that user's), out of that user's reach (see kernel.Identity.act).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
from typing import Any, Callable, NoReturn  # noqa: UP035  (Python 3.9 runs this)

from vf.sandbox.folder import Pack, Unpack, write_all
from vf.sandbox.inside.box import Box
from vf.sandbox.inside.keeper import close_all_but
from vf.sandbox.inside.loop import CHUNK, Outlet
from vf.sandbox.inside.program import lower_limits

SECONDS = 120.0
PIPE_SIZE = 16 * CHUNK
# Errors of a path to be read that mean that nothing is there.
ABSENT = (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class FileCall:
    """One ``read``, ``write``, ``pack`` or ``unpack`` request."""

    def __init__(self, box: Box, number: int, request: dict[str, Any], data: bytes) -> None:
        """Start it.

        Args:
            box: The supervisor's state.
            number: The request's id.
            request: Its header.
            data: The first chunk of what is written.

        Raises:
            OSError: If no further process can be started, or descriptor opened.
        """
        self._box, self._number = box, number
        box.calls[number] = self
        self._report = b""
        self._outlet: Outlet | None = None
        op = request["op"]
        self._reading = op in ("read", "pack")
        path = os.path.join(box.workdir, request["path"])
        theirs, ours = os.pipe() if not self._reading else (-1, -1)
        if self._reading:
            ours, theirs = os.pipe()
        self._status, status = os.pipe()

        def work() -> None:
            if op == "read":
                read(path, theirs, int(request["max_bytes"]))
            elif op == "pack":
                pack(path, theirs, int(request["max_bytes"]), request["leave_out"])
            elif op == "unpack":
                unpack(path, theirs, int(request["size"]))
            else:
                write(path, theirs, int(request["size"]), box.umask)

        # It must not hear a cancel before it knows what to do then.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._pid = os.fork()
            if self._pid == 0:
                report(box, work, {theirs, status}, status)
        except OSError:
            os.close(ours)
            os.close(self._status)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os.close(theirs)
            os.close(status)
        box.helpers.add(self._pid)
        os.set_blocking(self._status, False)
        box.loop.watch(self._status, self._listen)
        self._data = ours
        self._open = self._reading
        if self._reading:
            os.set_blocking(ours, False)
            box.loop.watch(ours, self._forward)
        else:
            self._outlet = Outlet(box.loop, ours, self._consumed)
            self.feed(data, end=bool(request["whole"]))
        self._timer = box.loop.later(SECONDS, self._late)

    def feed(self, data: bytes, *, end: bool) -> None:
        """Take more of what is written."""
        if self._outlet is not None:
            self._outlet.send(data)
            if end:
                self._outlet.end()

    def cancel(self) -> None:
        """Stop it."""
        self._box.who.kill(self._pid, signal.SIGTERM)

    def _consumed(self, count: int) -> None:
        if self._number in self._box.calls:
            self._box.answer(self._number, {"ack": count})

    def _late(self) -> None:
        self.cancel()
        self._box.lost(self._number, f"a file took longer than {SECONDS:g} s")

    def _forward(self) -> None:
        if self._box.full(self._resume):
            self._box.loop.forget(self._data)
            return
        try:
            data = os.read(self._data, 4 * CHUNK)
        except BlockingIOError:
            return
        if data:
            self._box.answer(self._number, {"data": True}, data)
        else:
            self._open = False
            self._box.loop.close(self._data)
            self._finish()

    def _resume(self) -> None:
        if self._open:
            self._box.loop.watch(self._data, self._forward)

    def _listen(self) -> None:
        try:
            data = os.read(self._status, 4096)
        except BlockingIOError:
            return
        self._report += data
        if not data:
            self._box.loop.close(self._status)
            self._status = -1
            self._finish()

    def _finish(self) -> None:
        if self._open or self._status >= 0 or not self._timer:
            return
        self._timer.clear()
        if self._outlet is not None:
            self._outlet.close()
        if not self._report:
            self._box.lost(self._number, "the process that handled a file was killed")
            return
        result = json.loads(self._report)
        self._box.calls.pop(self._number, None)
        self._box.answer(self._number, {"done": True, **result})


def report(box: Box, work: Callable[[], None], fds: set[int], status: int) -> NoReturn:
    """Do the work in the child of a fork; write its outcome to ``status``."""
    result: dict[str, Any] = {}
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, cancelled)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        close_all_but(fds)
        lower_limits(box.rlimits)
        box.who.act()
        work()
    except OSError as exc:
        result = {"error": "os", "errno": exc.errno, "message": exc.strerror or str(exc)}
    except ValueError as exc:
        result = {"error": "value", "message": str(exc)}
    except BaseException as exc:
        result = {"error": "value", "message": repr(exc)}
    finally:
        with contextlib.suppress(OSError):
            os.write(status, json.dumps(result).encode())
        os._exit(0)


def cancelled(number: int, frame: object) -> NoReturn:
    """Fail once, however many signals come, so that half a file is removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise ValueError("the call was cancelled")


def read(path: str, out: int, max_bytes: int) -> None:
    """Write a regular file's content to ``out``.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If it is not a regular file, or too large.
    """
    try:
        # Without O_NONBLOCK the open of a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as exc:
        if exc.errno in ABSENT:
            raise FileNotFoundError(errno.ENOENT, exc.strerror) from exc
        if exc.errno in (errno.ENXIO, errno.ENODEV):
            raise ValueError("it is not a regular file") from exc
        raise
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(info.st_mode):
        raise ValueError("it is not a regular file")
    if info.st_size > max_bytes:
        raise ValueError(f"it has {info.st_size} bytes, more than max_bytes = {max_bytes}")
    left = max_bytes
    while True:
        data = os.read(fd, min(PIPE_SIZE, left + 1))
        if not data:
            return
        left -= len(data)
        if left < 0:
            raise ValueError(f"it has more bytes than max_bytes = {max_bytes}")
        write_all(out, data)


def write(path: str, source: int, size: int, umask: int) -> None:
    """Write what comes from ``source`` to a file; an old one is replaced atomically.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If data is missing.
    """
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    os.makedirs(folder, exist_ok=True)
    mode = 0o666 & ~umask
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(path)
        if stat.S_ISREG(old.st_mode):
            mode = stat.S_IMODE(old.st_mode)
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    part = os.path.join(folder, f".vf-{os.getpid()}-{os.urandom(6).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:  # a cancel is heard as soon as the file is there
        fd = os.open(part, flags, 0o600)
        while True:
            data = os.read(source, PIPE_SIZE)
            if not data:
                break
            write_all(fd, data)
            size -= len(data)
        if size:
            raise ValueError(f"{size} bytes did not come")
        os.fchmod(fd, mode)
        # A program that is open for writing cannot be run, and it may be run before we are gone.
        os.close(fd)
        os.rename(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def pack(path: str, out: int, max_bytes: int, leave_out: list[str]) -> None:
    """Write the records of a folder to ``out``.

    Raises:
        OSError: If it is not a folder, or cannot be read.
        ValueError: If it is too large or too deep.
    """
    records = Pack(path, leave_out, max_bytes, strict=False)
    try:
        for data in records:
            write_all(out, data)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise FileNotFoundError(errno.ENOENT, exc.strerror) from exc
        entry = f" ({records.path})" if records.path else ""
        raise OSError(exc.errno, f"{exc.strerror}{entry}") from exc


def unpack(path: str, source: int, size: int) -> None:
    """Unpack the records that come from ``source`` into a folder.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If data is missing.
    """
    folder = Unpack(path, foreign=False)
    while data := os.read(source, PIPE_SIZE):
        folder.feed(data)
        size -= len(data)
    if size:
        raise ValueError(f"{size} bytes did not come")
    folder.finish()
