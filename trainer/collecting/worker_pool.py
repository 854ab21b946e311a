"""Rollouts in worker processes: placed, called, and replaced when they end."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from vf.traces.trace import Failure, Origin, StopReason, Trace
from vf.trainer.collecting.runners import Ended
from vf.trainer.collecting.worker_process import run_worker
from vf.trainer.collecting.worker_setup import WorkerSetup
from vf.trainer.collecting.worker_slots import Worker, WorkerSlots
from vf.trainer.processes.placement import size_of

log = logging.getLogger(__name__)

HOUR = 3600.0
PAUSE_SECONDS = 5.0  # until a place is asked for again; doubles where a worker cannot begin
MOST_PAUSE_SECONDS = 60.0
SUSPICIOUS = 2  # workers that ended with the same work, before that is taken for the cause
MOST_LOSSES = 10  # the same with those that ended with their machines, after which it has failed
NAMED = 5  # tasks in a message


class WorkerPool:
    """Runs rollouts in worker processes.

    What was under way in a worker that ended is run again by another, with the same seeds. The
    worker is replaced, ``restarts_per_hour`` times at most for all workers together. One that
    cannot begin ends the run only if none has ever begun. Where there is no place for one, the
    others run on.

    Args:
        setup: The workers' settings; each gets its number.
        fleet: The fleet that places the processes.
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
        self._slots = WorkerSlots(setup.count, setup.config.args.max_concurrent)
        # When workers ended in the last hour, and the tasks that were under way in them.
        self._losses: deque[tuple[float, Sequence[str]]] = deque()
        self._away: dict[int, float] = {}  # workers that have no place, since when
        self._began = False  # whether any worker ever has
        self._servers_answered = False  # whether the inference servers have answered a worker
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
            TrainingError: If workers end again and again, or cannot begin.
            ConfigError: If the environment cannot be made in a worker.
        """
        if self._failure is not None:
            raise fresh(self._failure)

    async def prefetch(self, environment: str, tasks: Sequence[Task]) -> None:
        """Have each task's image fetched by the worker that will run its rollouts."""
        await asyncio.gather(*(self._prefetch(environment, task) for task in tasks))

    async def _prefetch(self, environment: str, task: Task) -> None:
        async with self._slots.hold(task) as (_, worker):
            try:
                await worker.peer.call("prefetch", environment, [task])
            except WorkerLost:  # the rollout's worker fetches it then
                self._slots.leave(worker)

    async def rollout(
        self,
        environment: str,
        task: Task,
        *,
        sampling: Sampling,
        seed: int,
        origin: Origin | None,
        activity: Activity,
    ) -> Ended:
        """Run one rollout in a worker; see :class:`~vf.trainer.collecting.runners.Runner`.

        Where worker after worker ends with it, it ends as a failure.

        Raises:
            TrainingError: If no worker can run.
            ConfigError: If the task cannot be sent to another process.
        """

        def begin(number: int, peer: Peer) -> Awaitable[Any]:
            return peer.call("rollout", number, environment, task, sampling, seed, origin)

        try:
            ended = Ended(*await self._run(task, begin, activity))
        except WorkerLost as error:
            trace = Trace(environment=environment, task=task, seed=seed)
            trace.origin, trace.stop_reason = origin, StopReason.ERROR
            trace.error = Failure.of(error)
            return Ended(trace)
        self._servers_answered |= bool(ended.trace.turns)
        return ended

    async def score_group(self, environment: str, traces: Sequence[Trace]) -> list[Ended]:
        """Let a worker score the rollouts of one task, and write the scores down here.

        Where worker after worker ends with it, the rollouts have failed.
        """
        if not traces:
            return []
        task = traces[0].task
        try:
            scored = await self._run(
                task, lambda _, peer: peer.call("score_group", environment, traces)
            )
        except WorkerLost as error:
            scored = [(None, Failure.of(error), None)] * len(traces)
        ended = []
        for trace, (score, failure, line) in zip(traces, scored, strict=True):
            trace.score, trace.error = score, failure
            ended.append(Ended(trace, line))
        return ended

    async def _run(
        self,
        task: Task,
        begin: Callable[[int, Peer], Awaitable[Any]],
        activity: Activity | None = None,
    ) -> Any:
        """Have a worker do some work, and another one if it ends under the work.

        After ``SUSPICIOUS`` losses it goes where nothing else is under suspicion. A further one is
        then laid to it, unless the machine went.

        Args:
            task: The task of the work.
            begin: Begins it, given its number and the connection.
            activity: The activity of a rollout.

        Raises:
            WorkerLost: If the work itself seems to end workers.
            ConfigError: If the task cannot be sent to another process.
        """
        lost: list[Worker] = []
        while True:
            if activity is not None:
                activity.enter("worker")
            suspect = sum(not worker.machine_lost for worker in lost) >= SUSPICIOUS
            async with self._slots.hold(task, activity, suspect=suspect) as (number, worker):
                try:
                    return await begin(number, worker.peer)
                except WorkerLost:
                    self._slots.leave(worker)
                    worker.broken.append(task.id)
                    lost.append(worker)
                except (pickle.PicklingError, TypeError, AttributeError) as error:  # of pickling
                    raise ConfigError(
                        f"task {task.id!r} cannot be sent to a worker process: {error}. Make its "
                        "prompt, answer and info of text, numbers, lists and dicts, or set "
                        "rollouts.workers = 0"
                    ) from error
            if suspect:
                await worker.ended.wait()
            self.check()
            if len(lost) >= MOST_LOSSES or (suspect and not worker.machine_lost):
                raise WorkerLost(
                    f"{len(lost)} rollout workers ended, one after the other, with work for task "
                    f"{task.id!r} under way, which seems to be the cause: see {self._logs}"
                )

    async def stop(self) -> None:
        """End the workers. Safe to call twice."""
        self._fail(TrainingError("the rollout workers have been stopped"))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._listening.aclose()

    async def _keep(self, number: int) -> None:
        """Have a worker running under this number, for as long as that can be done."""
        failures = 0  # one after the other
        try:
            while True:
                worker = Worker()
                try:
                    await run_worker(
                        replace(
                            self._setup, number=number, servers_answered=self._servers_answered
                        ),
                        fleet=self._fleet,
                        listener=self._listener,
                        leases=self._leases,
                        log=self._logs / f"worker-{number}.log",
                        handlers={"activities": worker.note},
                        placed=partial(self._placed, number),
                        ready=partial(self._enter, worker),
                        note=self._note,
                    )
                except WorkerLost as error:
                    self._slots.leave(worker)
                    self._count(str(error), worker.broken)
                except PlacementError as error:
                    self._slots.leave(worker)
                    worker.machine_lost = True
                    if worker.began:
                        self._count(str(error))
                    else:
                        self._miss(number, error)
                        await asyncio.sleep(PAUSE_SECONDS)
                except VfError as error:
                    if not self._began:
                        raise
                    self._count(f"rollout worker {number} could not begin: {error}")
                    await asyncio.sleep(min(PAUSE_SECONDS * 2**failures, MOST_PAUSE_SECONDS))
                    failures += 1
                finally:
                    worker.ended.set()
                if worker.began:
                    failures = 0
        except VfError as error:
            self._fail(error)
        except Exception as error:  # a bug, which must not leave rollouts waiting
            log.exception("rollout worker %d", number)
            self._fail(TrainingError(f"rollout worker {number}: {error!r}"))

    def _enter(self, worker: Worker, peer: Peer) -> None:
        worker.peer, worker.began, self._began = peer, True, True
        self._slots.enter(worker)

    def _fail(self, error: VfError) -> None:
        if self._failure is None:
            self._failure = error
            self._slots.fail(error)

    def _placed(self, number: int) -> None:
        self._away.pop(number, None)

    def _miss(self, number: int, error: PlacementError) -> None:
        """Note that there is no place for a worker, once until it has one again.

        Raises:
            TrainingError: If no worker has begun for as long as one may take to.
        """
        now, config = time.monotonic(), self._setup.config
        if number not in self._away:
            self._away[number] = now
            self._note(f"rollout worker {number} could not be placed; tried again: {error}")
        seconds = max(config.rollouts.startup_timeout, config.cluster.wait)
        if len(self._away) == self._setup.count and now >= max(self._away.values()) + seconds:
            raise TrainingError(
                f"no rollout worker could be placed for {seconds:g} s "
                f"(rollouts.startup_timeout, or cluster.wait if that is more): {error}"
            ) from error

    def _count(self, what: str, tasks: Sequence[str] = ()) -> None:
        """Note that a worker has ended.

        Args:
            what: The way in which it ended.
            tasks: The tasks of each rollout that was under way in it.

        Raises:
            TrainingError: If workers ended too often.
        """
        now, most = time.monotonic(), self._setup.config.rollouts.restarts_per_hour
        self._losses.append((now, tasks))
        while self._losses[0][0] < now - HOUR:
            self._losses.popleft()
        if (count := len(self._losses)) > most:
            lost = [set(tasks) for _, tasks in self._losses if tasks]
            named = ", ".join(sorted(set.intersection(*lost))[:NAMED]) if lost else ""
            raise TrainingError(
                f"{what}. It was number {count} within an hour, and rollouts.restarts_per_hour = "
                f"{most}; see {self._logs}"
                + (f". Each time, rollouts of these tasks were under way: {named}" if named else "")
            )
        again = f", and {len(tasks)} rollouts are run again" if tasks else ""
        self._note(f"{what}; it is replaced{again}")
