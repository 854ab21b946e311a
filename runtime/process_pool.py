"""Scorers that are slow or may hang, in separate processes.

A thread does not help with these: a regular expression or a symbolic simplification that holds
the interpreter's lock stops every rollout, and a thread cannot be stopped at all. Here each
function runs in a worker process with a deadline. Whatever happens to it, a hang, a crash, a
``sys.exit``, only its caller hears of it, as a :class:`RubricError` that names the function.

The workers are interpreters, or forks of one, started when first needed and reused; they do not
import the program's main file again, as the standard library's pools do.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from vf.runtime.errors import ConfigError, RubricError, ScoringTimeout
from vf.runtime.worker_handles import Forks, Worker, interpreter

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_TIMEOUT = 10.0  # seconds
_MOST_WORKERS = 8
_CPU_BOUND = "__vf_cpu_bound__"
# Seconds of processor time that a bounded call gets at first, and again, before it gets all.
_SLICES = (0.05, 0.2, 0.8)
_NICENESS = 5  # of those for which that did not suffice
_STANDS = 300.0  # seconds after which a call that does not compute is killed


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
        ScoringTimeout: If it took longer than ``timeout``, and was killed.
        ScoringDied: If its process ended in the middle of the call.
        RubricError: If it raised, ended its process, or something could not be pickled. The
            message names the function.
        asyncio.CancelledError: If the caller gave up; the function is killed.
    """
    return await _pools.interpreters.run(_Job(fn, args, timeout))


async def run_bounded(fn: Callable[..., Any], *args: Any, timeout: float) -> Any:
    """Call a function that a model's answer can keep busy, so that others' calls hardly wait.

    The call gets a short time first. If that does not suffice it is killed, and made from the
    beginning in another set of workers, with four times as much, until it has had ``timeout``: it
    must have no side effects, and takes about a third more in all. What is slow thus waits for
    what is slow. The workers are forks of a process that has loaded the function, so a killed
    one is replaced in milliseconds; they have 1 GiB of memory.

    Args:
        fn: A function of a module, without side effects.
        args: Its arguments. They and the result must be picklable.
        timeout: Seconds of processor time for the call, which a busy machine does not shorten.

    Raises:
        ScoringTimeout: If the call took longer, and was killed.
        ScoringDied: If its process ended in the middle of the call, perhaps because the call took
            more memory than a worker has.
        RubricError: If the function raised, something could not be pickled, or the machine did not
            let the call end: no worker could be started, or it was killed from outside. The message
            names the function.
        asyncio.CancelledError: If the caller gave up; the function is killed.
    """
    slices = [seconds for seconds in _SLICES if seconds < timeout]
    for pool, seconds in zip(_pools.forks, slices, strict=False):
        try:
            return await pool.run(_Job(fn, args, _STANDS, seconds))
        except ScoringTimeout:
            continue
    return await _pools.forks[len(slices)].run(_Job(fn, args, _STANDS, timeout))


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
        ConfigError: If it is not a function of an importable module.
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


class InWorker:
    """A function for :func:`run_bounded` that each worker makes for itself.

    What it needs is loaded there alone: before the clock of a call starts, and once for all forks.

    Args:
        make: A function of a module, which returns the function to call.
        args: Its arguments, picklable.
        name: The function's name in messages.
    """

    def __init__(self, make: Callable[..., Callable[..., Any]], *args: Any, name: str) -> None:
        self._made = make, args
        self.__name__ = name

    def __reduce__(self) -> tuple[Callable[..., Callable[..., Any]], tuple[Any, ...]]:
        return self._made

    def __call__(self, *args: Any) -> Any:
        make, settings = self._made
        return make(*settings)(*args)


class _Job:
    """One call, and the future that waits for it in the caller's loop."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        timeout: float,
        processor_time: float | None = None,
    ) -> None:
        self.fn = fn
        self._call = fn, args, timeout, processor_time
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Kill the worker if it is at this call; else see that the call never begins."""
        with self._lock:
            self._cancelled = True
            if self._worker is not None:
                self._worker.process.kill()

    def run(self, worker: Worker) -> bool:
        """Make the call, in one of the pool's threads; return False if the worker was dead."""
        with self._lock:
            if self._cancelled:
                return True
            self._worker = worker
        value: Any = None
        error: RubricError | None = None
        try:
            value = worker.call(*self._call)
        except RubricError as raised:
            error = raised
        with self._lock:
            self._worker = None
            if worker.repeatable and not self._cancelled:
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


class _Pool:
    """Threads that each look after one worker; there are never more than needed.

    Args:
        most: The largest number of threads.
        start: Starts a worker for a function.
    """

    def __init__(self, most: int, start: Callable[[Callable[..., Any]], Worker]) -> None:
        self._most, self._start = most, start
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._open = 0  # jobs that wait or run

    async def run(self, job: _Job) -> Any:
        self._submit(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            job.cancel()
            raise

    def _submit(self, job: _Job) -> None:
        with self._lock:
            self._open += 1
            more = self._open > self._threads < self._most
            self._threads += more
        self._jobs.put(job)
        if more:
            threading.Thread(target=self._look_after, name="vf-scorer", daemon=True).start()

    def _look_after(self) -> None:
        worker: Worker | None = None
        while True:
            job = self._jobs.get()
            try:
                if worker is None or not worker.alive:
                    worker = self._start(job.fn)
                while not job.run(worker):
                    worker = self._start(job.fn)
            except Exception as error:  # whatever it is, the caller waits for an answer
                name = getattr(job.fn, "__name__", type(job.fn).__name__)
                failure = RubricError(f"{name!r}: no process could be started: {error}")
                job.hand_back(None, failure)
            finally:
                with self._lock:
                    self._open -= 1


class _Pools:
    """The pools of one process."""

    def __init__(self, size: int | None = None) -> None:
        size = size or min(_MOST_WORKERS, os.cpu_count() or 1)
        forks = Forks()

        def fork(niceness: int, fn: Callable[..., Any]) -> Worker:
            return Worker(partial(forks.start, fn=fn, niceness=niceness))

        self.interpreters = _Pool(size, lambda fn: Worker(interpreter))
        niceness = [0] + [_NICENESS] * len(_SLICES)
        self.forks = [_Pool(size, partial(fork, nice)) for nice in niceness]


def _forget() -> None:
    """After a fork, the workers and their threads are the parent's."""
    global _pools
    _pools = _Pools()


_pools = _Pools()
os.register_at_fork(after_in_child=_forget)
