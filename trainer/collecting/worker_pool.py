"""Rollouts in worker processes: placed, called, and replaced when they end."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from vf.cluster.fleet import Fleet
from vf.environments.episode import Activity
from vf.inference.leases import Leases
from vf.inference.model import Sampling
from vf.runtime.errors import (
    ConfigError,
    PlacementError,
    TrainingError,
    VfError,
    WorkerLost,
    fresh,
)
from vf.runtime.meeting import Listener, listen
from vf.runtime.peers import Peer
from vf.traces.task import Task
from vf.traces.trace import Origin, Trace
from vf.trainer.collecting.runners import Ended
from vf.trainer.collecting.worker_places import Worker, WorkerPlaces
from vf.trainer.collecting.worker_process import run_worker
from vf.trainer.collecting.worker_setup import WorkerSetup
from vf.trainer.processes.fleets import size_of

log = logging.getLogger(__name__)

HOUR = 3600.0
PLACE_SECONDS = 5.0  # until a place that could not be had is asked for again
LOSSES = 10  # workers that one rollout may be lost with, before it ends the run
NAMED = 5  # tasks in a message


class WorkerPool:
    """Runs rollouts in worker processes.

    What was under way in a worker that ended is run again by another, with the same seeds. The
    worker is replaced, ``restarts_per_hour`` times at most. One that cannot begin is not.

    Args:
        setup: What workers run rollouts with; each gets its number.
        fleet: Places the processes.
        leases: The inference engine's.
        logs: Folder of the workers' output.
        note: Called with what the user should know.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        *,
        fleet: Fleet,
        leases: Leases,
        logs: Path,
        note: Callable[[str], None],
    ) -> None:
        self._setup = setup
        self._fleet = fleet
        self._leases = leases
        self._logs = logs
        self._note = note
        self._listening = AsyncExitStack()
        self._listener: Listener
        self._keepers: list[asyncio.Task[None]] = []
        self._places = WorkerPlaces(setup.count, setup.config.args.max_concurrent)
        # When workers ended in the last hour, and the tasks that were under way in them.
        self._losses: deque[tuple[float, Sequence[str]]] = deque()
        self._failure: VfError | None = None

    async def start(self) -> None:
        """Place the workers; rollouts wait for the first that is ready."""
        size = size_of(self._setup.config, "worker", 0)
        self._fleet.reserve([("worker", self._setup.count, size)])
        self._listener = await self._listening.enter_async_context(listen(self._fleet.host))
        for number in range(self._setup.count):
            self._keepers.append(asyncio.create_task(self._keep(number)))

    def check(self) -> None:
        """Raise what keeps workers from running.

        Raises:
            TrainingError: They end again and again, or cannot begin.
            ConfigError: The environment cannot be made in a worker.
        """
        if self._failure is not None:
            raise fresh(self._failure)

    async def prefetch(self, tasks: Sequence[Task]) -> None:
        """Have each task's image fetched by the worker that will run its rollouts."""
        await asyncio.gather(*(self._prefetch(task) for task in tasks))

    async def _prefetch(self, task: Task) -> None:
        async with self._places.hold(task) as (_, worker):
            try:
                await worker.peer.call("prefetch", [task])
            except WorkerLost:  # the rollout's worker fetches it then
                self._places.leave(worker)

    async def rollout(
        self,
        task: Task,
        *,
        sampling: Sampling,
        seed: int,
        origin: Origin | None,
        activity: Activity,
    ) -> Ended:
        """Run one rollout in a worker; see :class:`~vf.trainer.collecting.runners.Runner`.

        Raises:
            TrainingError: Each of ``LOSSES`` workers ended with it, or no worker can run.
            ConfigError: The task cannot be sent to another process.
        """
        for _ in range(LOSSES):
            activity.enter("worker")
            async with self._places.hold(task, activity) as (number, worker):
                try:
                    found = await worker.peer.call("rollout", number, task, sampling, seed, origin)
                    return Ended(*found)
                except WorkerLost:
                    self._places.leave(worker)
                    worker.broken.append(task.id)
                except (pickle.PicklingError, TypeError, AttributeError) as error:  # of pickling
                    raise ConfigError(
                        f"task {task.id!r} cannot be sent to a worker process: {error}. Make its "
                        "prompt, answer and info of text, numbers, lists and dicts, or set "
                        "rollouts.workers = 0"
                    ) from error
        raise TrainingError(
            f"{LOSSES} rollout workers ended, one after the other, with the same rollout of task "
            f"{task.id!r} (seed {seed}) under way, which may be the cause: see {self._logs}"
        )

    async def score_group(self, traces: Sequence[Trace]) -> list[Ended]:
        """Let a worker score the rollouts of one task, and write the scores down here."""
        if not traces:
            return []
        found = None
        while found is None:
            async with self._places.hold(traces[0].task) as (_, worker):
                try:
                    found = await worker.peer.call("score_group", traces)
                except WorkerLost:
                    self._places.leave(worker)
        ended = []
        for trace, (score, failure, line) in zip(traces, found, strict=True):
            trace.score, trace.error = score, failure
            ended.append(Ended(trace, line))
        return ended

    async def stop(self) -> None:
        """End the workers. Safe to call twice."""
        self._fail(TrainingError("the rollout workers have been stopped"))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._listening.aclose()

    async def _keep(self, number: int) -> None:
        """Have a worker running under this number, for as long as that can be done."""
        try:
            while True:
                worker = Worker()
                try:
                    await run_worker(
                        replace(self._setup, number=number),
                        fleet=self._fleet,
                        listener=self._listener,
                        leases=self._leases,
                        log=self._logs / f"worker-{number}.log",
                        handlers={"activities": worker.note},
                        ready=partial(self._enter, worker),
                    )
                except WorkerLost as error:
                    self._places.leave(worker)
                    self._count(str(error), worker.broken)
                except PlacementError as error:
                    self._count(f"rollout worker {number} could not be placed: {error}")
                    await asyncio.sleep(PLACE_SECONDS)
        except VfError as error:
            self._fail(error)
        except Exception as error:  # a bug, which must not leave rollouts waiting
            log.exception("rollout worker %d", number)
            self._fail(TrainingError(f"rollout worker {number}: {error!r}"))

    def _enter(self, worker: Worker, peer: Peer) -> None:
        worker.peer = peer
        self._places.enter(worker)

    def _fail(self, error: VfError) -> None:
        if self._failure is None:
            self._failure = error
            self._places.fail(error)

    def _count(self, what: str, tasks: Sequence[str] = ()) -> None:
        """Note that a worker has ended.

        Args:
            what: How it ended.
            tasks: Of each rollout that was under way in it.

        Raises:
            TrainingError: That was too often.
        """
        now, most = time.monotonic(), self._setup.config.rollouts.restarts_per_hour
        self._losses.append((now, tasks))
        while self._losses[0][0] < now - HOUR:
            self._losses.popleft()
        if (count := len(self._losses)) > most:
            always = set.intersection(*(set(tasks) for _, tasks in self._losses))
            named = ", ".join(sorted(always)[:NAMED])
            raise TrainingError(
                f"{what}. It was number {count} within an hour, and rollouts.restarts_per_hour = "
                f"{most}; see {self._logs}"
                + (f". Each time, rollouts of these tasks were under way: {named}" if named else "")
            )
        again = f", and {len(tasks)} rollouts are run again" if tasks else ""
        self._note(f"{what}; it is replaced{again}")
