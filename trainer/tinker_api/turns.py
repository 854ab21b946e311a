"""Whose request is next: one thread computes, and models take turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

MOST_SHORT = 16  # short requests in a row while a pass waits


@dataclass(slots=True, eq=False)
class _Request:
    work: Callable[[], Any]
    long: bool
    future: Future[Any] = field(default_factory=Future)


class Turns:
    """Runs the requests of one model in their order, and passes of different models by turns.

    What is short goes before the passes of others: a model whose pass has ended takes its optimizer
    step and gives its weights to be sampled from, and its client samples while another model's pass
    is computed. In the order of their arrival all would wait for the last pass of a round, and then
    sample at once while nothing is trained.

    Args:
        thread: Computes, and runs other work in between.
    """

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._lock = threading.Lock()
        self._queues: OrderedDict[str, deque[_Request]] = OrderedDict()  # the next turn's first
        self._short = 0  # in a row

    def submit(self, model_id: str, work: Callable[[], Any], *, long: bool) -> Future[Any]:
        """Run a request after those of its model before it; return its future.

        Args:
            model_id: The model's id.
            work: The request.
            long: Whether it is a pass.
        """
        request = _Request(work, long)
        with self._lock:
            self._queues.setdefault(model_id, deque()).append(request)
        self._thread.submit(self._run_next)
        return request.future

    def _run_next(self) -> None:
        with self._lock:
            request = self._take()
        if not request.future.set_running_or_notify_cancel():
            return
        try:
            result = request.work()
        except BaseException as error:
            request.future.set_exception(error)
        else:
            request.future.set_result(result)
        finally:
            del request  # which an error's traceback would hold

    def _take(self) -> _Request:
        """Return the next request, which waits no longer."""
        # The model whose turn it is, of those that wait for a pass and of those that do not.
        turns = {queue[0].long: model_id for model_id, queue in reversed(self._queues.items())}
        short = False in turns and (self._short < MOST_SHORT or True not in turns)
        self._short = self._short + 1 if short else 0
        model_id = turns[not short]
        queue = self._queues[model_id]
        request = queue.popleft()
        if not queue:
            del self._queues[model_id]
        else:
            self._queues.move_to_end(model_id)
        return request
