"""Threads for plain functions that may block.

Waking a thread costs more than most functions that it runs. So functions that were quick the last
time share one wake-up: those called at about the same time are a *batch*, which one thread runs
through. As soon as one of them turns out to be slow, each of the others gets a thread of its own;
where one blocks, after ``_PATIENCE`` seconds.

The threads are daemons: when the caller stops waiting (a deadline, a cancellation), a function
that hangs is left behind and cannot keep the process alive. The standard library's pools join
their threads at exit, so they would.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

_QUICK = 0.0002  # seconds, about what waking a few threads takes
_PATIENCE = 0.005  # seconds, the interpreter's own for a thread that does not yield

# The functions that were quick when they last ran. One that is made for each call, and a
# callable of another kind, is never among them.
_quick: WeakSet[Any] = WeakSet()


async def in_thread(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a plain function in a thread, in the caller's context, and return what it returns.

    Raises:
        RuntimeError: If the function raised StopIteration. Anything else passes.
    """
    loop = asyncio.get_running_loop()
    job = _Job(loop, fn, args, kwargs)
    if job.function in _quick:
        _lane(loop).add(job)
    else:
        _submit(_Batch(loop, [job]).run)
    return await job.future


class _Job:
    """One call, and the future that waits for it."""

    __slots__ = ("args", "context", "error", "fn", "function", "future", "kwargs", "result")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs
        function = getattr(fn, "__func__", fn)  # a bound method is a new object every time
        self.function = function if inspect.isfunction(function) else None
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> bool:
        """Call the function, in a worker; return whether it was quick."""
        started = time.perf_counter()
        try:
            self.result = self.context.run(self.fn, *self.args, **self.kwargs)
        except BaseException as error:
            self.error = error
        quick = time.perf_counter() - started < _QUICK
        if self.function is not None:
            (_quick.add if quick else _quick.discard)(self.function)
        return quick

    def settle(self) -> None:
        """Hand the outcome to who waits for it, in the loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        elif isinstance(self.error, StopIteration):  # a future refuses it
            self.future.set_exception(RuntimeError(f"raised StopIteration({self.error.value!r})"))
        else:
            self.future.set_exception(self.error)


class _Batch:
    """Calls that one worker makes, one after the other for as long as they are quick.

    The worker takes them off one end, whoever scatters the rest may be in another thread: a
    deque's own operations are atomic.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, jobs: list[_Job]) -> None:
        self.loop = loop
        self.todo = deque(jobs)
        self.done: deque[_Job] = deque()
        self.running: tuple[_Job, float] | None = None  # and since when
        self.finished: Callable[[], None] = self.settle

    def run(self) -> None:
        """Make the calls, in a worker."""
        while True:
            try:
                job = self.todo.popleft()
            except IndexError:
                break
            self.running = job, time.perf_counter()
            quick = job.run()
            self.done.append(job)
            if not quick:
                self.scatter()
        try:
            self.loop.call_soon_threadsafe(self.finished)
        except RuntimeError:
            return  # the loop has closed: nobody waits for the results any more

    def scatter(self) -> None:
        """Give every call that has not begun a worker of its own."""
        while True:
            try:
                job = self.todo.pop()
            except IndexError:
                return
            _submit(_Batch(self.loop, [job]).run)

    def settle(self) -> None:
        """Hand out what is done so far, in the loop."""
        while self.done:
            self.done.popleft().settle()

    def stuck(self) -> bool:
        """Return whether the call that is running has outrun the others' patience."""
        if self.running is None:
            return False
        job, since = self.running
        if time.perf_counter() - since < _PATIENCE:
            return False
        _quick.discard(job.function)
        return True


class _Lane:
    """The quick functions of one loop, a batch at a time. All of it runs in that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: list[_Job] = []
        self.batch: _Batch | None = None
        self.watch: asyncio.TimerHandle

    def add(self, job: _Job) -> None:
        self.waiting.append(job)
        if self.batch is None and len(self.waiting) == 1:
            self.loop.call_soon(self._start)  # what else is called until then comes along

    def _start(self) -> None:
        if self.batch is not None or not self.waiting:
            return
        self.batch = batch = _Batch(self.loop, self.waiting)
        self.waiting = []
        batch.finished = lambda: self._finished(batch)
        self._watch_later(batch)
        _submit(batch.run)

    def _watch_later(self, batch: _Batch) -> None:
        self.watch = self.loop.call_later(_PATIENCE, self._look_at, batch)

    def _look_at(self, batch: _Batch) -> None:
        if batch.stuck():
            batch.scatter()
            self._finished(batch)
        else:
            batch.settle()
            self._watch_later(batch)

    def _finished(self, batch: _Batch) -> None:
        batch.settle()
        if self.batch is batch:  # not if it was left behind, and finished after all
            self.watch.cancel()
            self.batch = None
            self._start()


class _Here(threading.local):
    lane: _Lane | None = None


_here = _Here()


def _lane(loop: asyncio.AbstractEventLoop) -> _Lane:
    """Return the lane of the loop that runs in this thread."""
    lane = _here.lane
    if lane is None or lane.loop is not loop:
        lane = _here.lane = _Lane(loop)
    return lane


class _Worker(threading.Thread):
    """Runs batches one after the other, and lies idle in between."""

    def __init__(self) -> None:
        super().__init__(name="vf-call", daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            self.jobs.get()()
            _idle.append(self)


# A worker whose job hangs never comes back here, so nobody waits behind it.
_idle: deque[_Worker] = deque()
os.register_at_fork(after_in_child=_idle.clear)


def _submit(job: Callable[[], None]) -> None:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.jobs.put(job)
