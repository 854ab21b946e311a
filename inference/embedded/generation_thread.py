"""The thread that generates: it takes requests from any event loop, and stops for the trainer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import torch

from vf.inference.embedded import pools
from vf.inference.embedded.request import News, Request
from vf.inference.embedded.scheduler import Scheduler
from vf.runtime.errors import EngineError

log = logging.getLogger(__name__)

Outcome = News | EngineError
Listener = tuple[asyncio.AbstractEventLoop, asyncio.Queue[Outcome]]
STOP_TIMEOUT = 30.0


class GenerationThread:
    """Steps a scheduler while there are requests and nobody holds it still.

    Between two requests, and while it is held still, the model is as it was loaded.

    Args:
        scheduler: Only this thread uses it, or who holds the thread still.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._changed = threading.Condition()
        self._inbox: deque[Request] = deque()
        self._listeners: dict[Request, Listener] = {}
        self._pauses = 0
        self._still = True  # it does not use the model
        self._stopping = False
        self._failure: BaseException | None = None
        # A daemon, so that a process whose engine was not stopped can still end.
        self._thread = threading.Thread(target=self._run, name="vf-generation", daemon=True)

    def start(self) -> None:
        """Begin; the calling thread, which has loaded the model, computes no more meanwhile."""
        pools.let_go()
        self._thread.start()

    def stop(self) -> None:
        """End after the pass under way; requests fail."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(STOP_TIMEOUT)

    def check(self) -> None:
        """Do nothing if it is alive.

        Raises:
            EngineError: If it has died, or was stopped.
        """
        if self._failure is not None:
            raise self._death() from self._failure
        if self._stopping:
            raise self._death()

    def add(self, request: Request, outcomes: asyncio.Queue[Outcome]) -> None:
        """Run a request; what comes of it arrives in ``outcomes`` on the running event loop.

        Raises:
            EngineError: If the thread is dead.
        """
        with self._changed:
            self.check()
            self._listeners[request] = asyncio.get_running_loop(), outcomes
            self._inbox.append(request)
            self._changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the thread still; requests under way continue after the last of those who do so.

        Raises:
            EngineError: If it is dead, or died meanwhile.
        """
        with self._changed:
            self.check()
            self._pauses += 1
            self._changed.wait_for(lambda: self._still)
        try:
            self.check()
            synchronize(self.scheduler.device)
            self.scheduler.release()
            yield
            synchronize(self.scheduler.device)
        finally:
            pools.let_go()
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def _run(self) -> None:
        try:
            while self._wait():
                try:
                    with self.scheduler.active():
                        while self._step():
                            pass
                except Exception as error:
                    self._recover(error)
        except BaseException as error:  # whatever it is, those who wait get it
            self._failure = error
            log.exception("the embedded engine's thread died")
        finally:
            with self._changed:
                self._stopping = self._still = True
                self._changed.notify_all()
                requests = [*self._listeners]
            self._tell((request, self._death()) for request in requests)

    def _recover(self, error: Exception) -> None:
        """Fail the requests of a pass that raised, and continue if the model still computes.

        Raises:
            Exception: If it does not; the same.
        """
        log.exception("a pass of the embedded engine failed")
        with self._changed:
            requests = [request for request in self._listeners if request not in self._inbox]
        failure = EngineError(f"a pass of the embedded engine failed: {error!r}")
        self._tell((request, failure) for request in requests)
        self.scheduler.abandon()
        try:
            self.scheduler.check()
        except Exception:
            raise error from None

    def _wait(self) -> bool:
        """Return when there is work, or with False when it is time to stop."""
        pools.let_go()
        with self._changed:
            self._still = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping or self._has_work())
            self._still = False
            return not self._stopping

    def _has_work(self) -> bool:
        return not self._pauses and bool(self._inbox or self.scheduler.busy)

    def _step(self) -> bool:
        """Run a pass, and return whether there is to be another at once."""
        while self._inbox:
            self.scheduler.add(self._inbox.popleft())
        self._tell(
            (news.request, EngineError(news.failure) if news.failure else news)
            for news in self.scheduler.step()
        )
        return not self._stopping and self._has_work()

    def _tell(self, outcomes: Iterable[tuple[Request, Outcome]]) -> None:
        """Deliver outcomes, all that are for one event loop at once."""
        by_loop = defaultdict(list)
        for request, outcome in outcomes:
            if (listener := self._listeners.get(request)) is not None:
                by_loop[listener[0]].append((listener[1], outcome))
        for loop, items in by_loop.items():
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(_put, items)

    def forget(self, request: Request) -> None:
        """Drop a request: nobody waits for what comes of it."""
        request.cancelled = True
        self._listeners.pop(request, None)

    def _death(self) -> EngineError:
        if self._failure is not None:
            return EngineError(f"the embedded engine's thread died: {self._failure!r}")
        return EngineError("the embedded engine is not running: it was stopped")


def _put(items: list[tuple[asyncio.Queue[Outcome], Outcome]]) -> None:
    for queue, outcome in items:
        queue.put_nowait(outcome)


def synchronize(device: torch.device) -> None:
    """Wait for what was started on a device; on a CPU nothing is left to wait for."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
