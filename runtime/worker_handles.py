"""Processes that call functions: started, asked and killed, each by one thread at a time.

A worker is a plain interpreter, or a fork of one that has loaded the worker's function. The fork is
there in milliseconds, which matters where a worker is often killed.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, Protocol

from vf.runtime.errors import RemoteError, RubricError, ScoringDied, ScoringTimeout
from vf.runtime.process_worker import RAISED, STARTED

_START_TIMEOUT = 120.0  # seconds for a worker to start and import the function's module
_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from vf.runtime.process_worker import {}; {}(int(sys.argv[1]), int(sys.argv[2]))"
)


class WorkerProcess(Protocol):
    """What of :class:`subprocess.Popen` a worker needs."""

    @property
    def returncode(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> object: ...


class Worker:
    """A process, and the pipe to it.

    Args:
        start: Starts the process, which is given the other end of the pipe.

    Attributes:
        alive: It was not killed here.
        repeatable: Another one can make the last call in its place: it was gone before the call
            began, or ended with the process that had forked it.
    """

    def __init__(self, start: Callable[[int], WorkerProcess]) -> None:
        self.alive, self.repeatable = True, False
        self._answered = False
        self.pipe, theirs = Pipe()
        try:
            self.process = start(theirs.fileno())
        finally:
            theirs.close()
        _alive.add(self.process)

    def call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        timeout: float,
        processor_time: float | None = None,
    ) -> Any:
        """Call a function in the process.

        Args:
            fn: The function.
            args: Its arguments.
            timeout: Seconds for the call.
            processor_time: Seconds that it may compute; None for as many as it takes.

        Raises:
            ScoringTimeout: If the call took longer, and was killed.
            ScoringDied: If the process ended in the middle of the call.
            RubricError: If the function raised, something could not be sent, the process did not
                get as far as the call, or a call with a ``processor_time`` was ended from outside.
        """
        name = getattr(fn, "__name__", type(fn).__name__)
        try:
            call = pickle.dumps((fn, args))
            request = pickle.dumps((import_path(), call, processor_time))
        except Exception as error:
            raise RubricError(f"{name!r}: cannot be sent to a process: {error}") from error
        started = False
        try:
            self.pipe.send_bytes(request)
            kind, value = _within(self.pipe, _START_TIMEOUT)
            started = True
            if kind == STARTED:
                kind, value = _within(self.pipe, timeout)
        except TimeoutError as error:
            self.kill()
            if not started:
                raise RubricError(f"{name!r}: its process did not start within {error} s") from None
            if processor_time is not None:  # which is what the call itself can use up
                raise RubricError(
                    f"{name!r}: its process did not get {processor_time:g} s of processor time "
                    f"within {error} s"
                ) from None
            raise ScoringTimeout(
                f"{name!r} took longer than its {error} s, and was killed"
            ) from None
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)  # for its own exit code
            self.kill()
            lost = self.process.returncode is None
            self.repeatable = lost or (self._answered and not started)
            if self.process.returncode == -signal.SIGPROF:
                raise ScoringTimeout(
                    f"{name!r} took longer than its {processor_time:g} s of processor time, and "
                    "was killed"
                ) from None
            # A bounded call's own memory has a limit, so a kill is the machine's doing.
            killed = processor_time is not None and self.process.returncode == -signal.SIGKILL
            raise (ScoringDied if started and not killed else RubricError)(
                f"{name!r}: its process ended in the middle, with exit code "
                f"{self.process.returncode} (-9 is a kill, perhaps because memory ran out)"
            ) from error
        except Exception as error:  # the result could not be unpickled here
            raise RubricError(f"{name!r} returned something unreadable: {error}") from error
        self._answered = True
        if kind == RAISED:
            type_name, message, trace = value
            cause = RemoteError("raised in another process", trace)
            raise RubricError(f"{name!r} raised {type_name}: {message}") from cause
        return value

    def kill(self) -> None:
        """End the process now."""
        self.alive = False
        self.process.kill()
        self.process.wait()
        self.pipe.close()
        _alive.discard(self.process)


def interpreter(fd: int, serve: str = "serve") -> WorkerProcess:
    """Start a worker as an interpreter of its own.

    Args:
        fd: The worker's end of its pipe.
        serve: The function of :mod:`~vf.runtime.process_worker` that it runs.
    """
    return subprocess.Popen(
        [
            *(sys.executable, "-c", _COMMAND.format(serve, serve)),
            *(str(fd), str(os.getpid()), json.dumps(import_path())),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=[fd],
    )


class Forks:
    """Workers that are forks of one interpreter, which is started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: Connection | None = None

    def start(self, fd: int, fn: Callable[..., Any], niceness: int) -> WorkerProcess:
        """Start a worker that has loaded a function.

        Args:
            fd: The worker's end of its pipe.
            fn: The function that it will be asked to call.
            niceness: By how much it lets other processes go first.

        Raises:
            OSError: If it could not be started.
            EOFError: If the interpreter ends whenever it is to fork.
        """
        request = import_path(), pickle.dumps(fn), niceness
        with self._lock:
            try:
                return _Fork(self, self._ask(request, fd))
            except (EOFError, OSError):  # it has ended, perhaps because memory ran out
                self._pipe = None
                return _Fork(self, self._ask(request, fd))

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a worker that has ended; None if its interpreter has, too."""
        with self._lock:
            try:
                code: int | None = self._ask(pid)
            except (EOFError, OSError):
                self._pipe = code = None
            return code

    def _ask(self, request: object, fd: int | None = None) -> Any:
        if self._pipe is None:
            self._pipe, theirs = Pipe()
            try:
                _alive.add(interpreter(theirs.fileno(), "serve_forks"))
            finally:
                theirs.close()
        self._pipe.send(request)
        if fd is not None:
            send_handle(self._pipe, fd, None)
        if not self._pipe.poll(_START_TIMEOUT):
            raise TimeoutError(f"no answer within {_START_TIMEOUT:g} s")
        return self._pipe.recv()


class _Fork:
    """A worker that was forked."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks, self._pid = forks, pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:  # until it was waited for, nothing else has its process id
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        if self.returncode is None:
            self.returncode = self._forks.exit_code(self._pid)


def import_path() -> list[str]:
    """Return where modules are imported from now; an environment's file may have added to it."""
    return [entry for entry in sys.path if isinstance(entry, str)]  # imports heed no other


def _within(pipe: Connection, seconds: float) -> tuple[str, Any]:
    if not pipe.poll(seconds):
        raise TimeoutError(f"{seconds:g}")
    answer: tuple[str, Any] = pipe.recv()
    return answer


_alive: set[WorkerProcess] = set()


@atexit.register
def _end() -> None:
    for process in list(_alive):
        process.kill()


os.register_at_fork(after_in_child=_alive.clear)
