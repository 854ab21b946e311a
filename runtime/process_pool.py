"""Scorers that are slow or may hang, in separate processes.

A thread does not help with these: a regular expression or a symbolic simplification that holds
the interpreter's lock stops every rollout, and a thread cannot be stopped at all. Here each
function runs in a worker process with a deadline. Whatever happens to it, a hang, a crash, a
``sys.exit``, only its caller hears of it, as a :class:`RubricError` that names the function.

The workers are plain interpreters, started when first needed and reused; they do not import the
program's main file again, as the standard library's pools do.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar, overload

from vf.runtime.errors import ConfigError, RubricError, ScoringDied, ScoringTimeout
from vf.runtime.process_worker import RAISED, STARTED

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_TIMEOUT = 10.0  # seconds
_START_TIMEOUT = 120.0  # seconds for a worker to start and import the function's module
_MOST_WORKERS = 8
_CPU_BOUND = "__vf_cpu_bound__"
_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from vf.runtime.process_worker import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)


async def run_in_process(
    fn: Callable[..., Any], *args: Any, timeout: float = DEFAULT_TIMEOUT
) -> Any:
    """Call a function in a worker process, and return what it returns.

    Args:
        fn: A function of a module (not a lambda, not one defined inside another function).
        args: Its arguments. They and the result must be picklable.
        timeout: Seconds for the call itself; waiting for a free worker, and the import of the
            function's module, do not count.

    Raises:
        ScoringTimeout: It took longer than ``timeout``, and was killed.
        ScoringDied: Its process ended in the middle of the call.
        RubricError: It raised, ended its process, or something could not be pickled. The message
            names the function.
        asyncio.CancelledError: The caller gave up; the function is killed.
    """
    job = _Job(fn, args, timeout)
    _pool.submit(job)
    try:
        return await job.future
    except asyncio.CancelledError:
        job.cancel()
        raise


@overload
def cpu_bound(fn: F) -> F: ...
@overload
def cpu_bound(*, timeout: float = DEFAULT_TIMEOUT) -> Callable[[F], F]: ...
def cpu_bound(fn: F | None = None, *, timeout: float = DEFAULT_TIMEOUT) -> F | Callable[[F], F]:
    """Mark a scoring function as slow: rubrics run it in a worker process.

    Example::

        @vf.cpu_bound(timeout=5)
        def proof_holds(trace: vf.Trace) -> float: ...

    Args:
        fn: A plain function of a module.
        timeout: Seconds for one call, after which it is killed and the rollout has no reward.

    Raises:
        ConfigError: ``timeout`` is not positive.
    """
    if not timeout > 0:
        raise ConfigError(f"cpu_bound: timeout must be positive, got {timeout}")

    def mark(fn: F) -> F:
        setattr(fn, _CPU_BOUND, timeout)
        return fn

    return mark if fn is None else mark(fn)


def cpu_timeout(fn: Callable[..., Any]) -> float | None:
    """Return the seconds that a function marked :func:`cpu_bound` has; None for any other."""
    return getattr(fn, _CPU_BOUND, None)


def check_picklable(fn: Callable[..., Any], name: str) -> None:
    """See that a worker will find the function.

    Raises:
        ConfigError: It is not a function of an importable module.
    """
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise ConfigError(
            f"{name!r} is marked cpu_bound, but a worker process cannot be given it: {error}. "
            "Define it at the top of a module"
        ) from None
    if getattr(fn, "__module__", None) == "__main__":
        raise ConfigError(
            f"{name!r} is marked cpu_bound, but it is defined in the program's main file, which "
            "a worker process does not run. Move it into a module and import it"
        )


class _Job:
    """One call, and the future that waits for it in the caller's loop."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> None:
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.fn, self.args, self.timeout = fn, args, timeout
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Kill the worker if it is at this call; else see that the call never begins."""
        with self._lock:
            self._cancelled = True
            if self._worker is not None:
                self._worker.kill()

    def run(self, worker: _Worker) -> bool:
        """Make the call, in one of the pool's threads; return False if the worker was dead."""
        with self._lock:
            if self._cancelled:
                return True
            self._worker = worker
        value: Any = None
        error: RubricError | None = None
        try:
            value = worker.call(self)
        except RubricError as raised:
            error = raised
        with self._lock:
            self._worker = None
            if worker.died_idle and not self._cancelled:
                return False
        self.hand_back(value, error)
        return True

    def hand_back(self, value: Any, error: RubricError | None) -> None:
        """Give the caller its answer, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:
            return  # the loop has closed: nobody waits any more

    def _settle(self, value: Any, error: RubricError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class _Worker:
    """A process, and the pipe to it.

    Attributes:
        died_idle: It had answered before, and was gone before the last call began, which
            another one can make in its place.
    """

    def __init__(self) -> None:
        self.died_idle = False
        self._answered = False
        self.pipe, theirs = Pipe()
        arguments = [str(theirs.fileno()), str(os.getpid()), json.dumps(import_path())]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        finally:
            theirs.close()
        _alive.add(self)

    def call(self, job: _Job) -> Any:
        try:
            request = pickle.dumps((import_path(), pickle.dumps((job.fn, job.args))))
        except Exception as error:
            raise RubricError(f"{job.name!r}: cannot be sent to a process: {error}") from error
        started = False
        try:
            self.pipe.send_bytes(request)
            kind, value = _within(self.pipe, _START_TIMEOUT)
            started = True
            if kind == STARTED:
                kind, value = _within(self.pipe, job.timeout)
        except TimeoutError as error:
            self.kill()
            raise ScoringTimeout(
                f"{job.name!r} took longer than its {error} s, and was killed"
            ) from None
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)  # for its own exit code
            self.kill()
            self.died_idle = self._answered and not started
            raise (ScoringDied if started else RubricError)(
                f"{job.name!r}: its process ended in the middle, with exit code "
                f"{self.process.returncode} (-9 is a kill, perhaps because memory ran out)"
            ) from error
        except Exception as error:  # the result could not be unpickled here
            raise RubricError(f"{job.name!r} returned something unreadable: {error}") from error
        self._answered = True
        if kind == RAISED:
            type_name, message, trace = value
            raise RubricError(f"{job.name!r} raised {type_name}: {message}") from _Remote(trace)
        return value

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        _alive.discard(self)


class _Remote(Exception):
    """The traceback of the worker, shown as the cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def import_path() -> list[str]:
    """Return where modules are imported from now; an environment's file may have added to it."""
    return [entry for entry in sys.path if isinstance(entry, str)]  # imports heed no other


def _within(pipe: Connection, seconds: float) -> tuple[str, Any]:
    if not pipe.poll(seconds):
        raise TimeoutError(f"{seconds:g}")
    found: tuple[str, Any] = pipe.recv()
    return found


class _Pool:
    """Threads that each look after one worker; there are never more than needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._open = 0  # jobs that wait or run

    def submit(self, job: _Job) -> None:
        with self._lock:
            self._open += 1
            more = self._open > self._threads < self._most
            self._threads += more
        self._jobs.put(job)
        if more:
            threading.Thread(target=self._look_after, name="vf-scorer", daemon=True).start()

    def _look_after(self) -> None:
        worker: _Worker | None = None
        while True:
            job = self._jobs.get()
            try:
                if worker is not None and not worker.alive:
                    worker.kill()
                    worker = None
                worker = worker or _Worker()
                while not job.run(worker):
                    worker = _Worker()  # a fresh one has not answered, so this ends
            except Exception as error:  # whatever it is, the caller waits for an answer
                failure = RubricError(f"{job.name!r}: no process could be started: {error}")
                job.hand_back(None, failure)
            finally:
                with self._lock:
                    self._open -= 1


def _size() -> int:
    return min(_MOST_WORKERS, os.cpu_count() or 1)


def _forget() -> None:
    """After a fork, the workers and their threads are the parent's."""
    global _pool
    _pool = _Pool(_size())
    _alive.clear()


_alive: set[_Worker] = set()
_pool = _Pool(_size())


@atexit.register
def _end() -> None:
    for worker in list(_alive):
        worker.process.kill()


os.register_at_fork(after_in_child=_forget)
