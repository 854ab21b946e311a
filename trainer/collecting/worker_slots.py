"""Which worker a rollout goes to."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from vf.environments.episode import Activity
from vf.runtime.errors import VfError, fresh
from vf.runtime.peers import Peer
from vf.traces.task import Task
from vf.trainer.collecting.worker_setup import Doing

NEAR = 8  # rollouts that a worker may have more than another, to keep those of a task together
HOMES = 16_384  # tasks whose worker is remembered


class Worker:
    """A worker.

    Attributes:
        peer: The connection to it.
        live: The worker's rollouts, by number.
        tasks: How many it was given so far.
        broken: The tasks of the work that it lost when it ended.
        began: Whether it could run rollouts.
        suspect: The number of the work in it that may be what ends workers.
        ended: Set once its process has ended.
        machine_lost: Whether that was the end of its machine.
    """

    def __init__(self) -> None:
        self.peer: Peer
        self.live: dict[int, Activity] = {}
        self.tasks = 0
        self.broken: list[str] = []
        self.began = False
        self.suspect: int | None = None
        self.ended = asyncio.Event()
        self.machine_lost = False

    async def note(self, doing: Sequence[Doing]) -> None:
        """Write down what its rollouts do; it calls this."""
        now = time.monotonic()
        for number, what, turn, seconds in doing:
            if (activity := self.live.get(number)) is not None:
                activity.turn = turn
                activity.enter(what)
                activity.since = now - seconds


@dataclass(eq=False, slots=True)
class _Turn:
    """Work that waits for its worker."""

    number: int
    task: Task
    activity: Activity | None
    suspect: bool
    granted: asyncio.Future[Worker]


class WorkerSlots:
    """The workers that are ready, and the work that waits for one.

    Each takes its part of the rollouts and a few more, also while others are still to come or are
    being replaced: their parts wait for them.

    Args:
        count: The number of workers, with those that are not ready.
        rollouts: The number that may be under way in all of them.
    """

    def __init__(self, count: int, rollouts: int) -> None:
        self._most = math.ceil(rollouts / count) + NEAR
        self._numbers = itertools.count()
        self._ready: list[Worker] = []
        self._homes: OrderedDict[str, Worker] = OrderedDict()  # where a task's last rollout went
        # In order of arrival. All of one kind can go to the same workers.
        self._waiting: defaultdict[tuple[bool, bool], OrderedDict[int, _Turn]] = defaultdict(
            OrderedDict
        )
        self._failure: VfError | None = None

    @asynccontextmanager
    async def hold(
        self, task: Task, activity: Activity | None = None, *, suspect: bool = False
    ) -> AsyncIterator[tuple[int, Worker]]:
        """Wait for a worker, and count a rollout as one of its own while the block runs.

        Args:
            task: The task; it goes to the worker of its other rollouts, unless that has many more.
            activity: The activity of the rollout; without one this is other work, of which any
                worker takes any amount.
            suspect: Whether it may be what ends workers. Each has one such piece of work at most,
                so that the next loss shows which it is.

        Yields:
            The work's number, and the worker.

        Raises:
            VfError: If no worker can run; see :meth:`fail`.
        """
        if self._failure is not None:
            raise fresh(self._failure)
        granted: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        turn = _Turn(next(self._numbers), task, activity, suspect, granted)
        waiting = self._waiting[activity is not None, suspect]
        waiting[turn.number] = turn
        self._grant()
        try:
            yield turn.number, await granted
        finally:
            waiting.pop(turn.number, None)
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                worker = granted.result()
                worker.live.pop(turn.number, None)
                if suspect:
                    worker.suspect = None
            self._grant()

    def enter(self, worker: Worker) -> None:
        """Give work to a worker from now on."""
        self._ready.append(worker)
        self._grant()

    def leave(self, worker: Worker) -> None:
        """Give no more work to a worker. Safe to call twice."""
        if worker in self._ready:
            self._ready.remove(worker)
            for task in [task for task, home in self._homes.items() if home is worker]:
                del self._homes[task]

    def fail(self, error: VfError) -> None:
        """Let whatever waits, now or later, end with an error."""
        self._failure = error
        for waiting in self._waiting.values():
            for turn in waiting.values():
                if not turn.granted.done():
                    turn.granted.set_exception(fresh(error))
            waiting.clear()

    def _grant(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                turn = next(iter(waiting.values()))
                if not turn.granted.done():  # else it was cancelled just now
                    worker = self._choose(turn)
                    if worker is None:
                        break
                    if turn.activity is not None:
                        worker.live[turn.number] = turn.activity
                    if turn.suspect:
                        worker.suspect = turn.number
                    turn.granted.set_result(worker)
                del waiting[turn.number]

    def _choose(self, turn: _Turn) -> Worker | None:
        """Return the worker for a task: that of its other rollouts, unless that has many more."""
        free = [
            worker
            for worker in self._ready
            if (turn.activity is None or len(worker.live) < self._most)
            and not (turn.suspect and worker.suspect is not None)
        ]
        if not free:
            return None
        least = min(free, key=lambda worker: (len(worker.live), worker.tasks))
        home = self._homes.pop(turn.task.id, None)
        if home not in free or len(home.live) >= len(least.live) + NEAR:
            home = least
            home.tasks += 1
        self._homes[turn.task.id] = home
        if len(self._homes) > HOMES:
            self._homes.popitem(last=False)
        return home
