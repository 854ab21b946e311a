"""Rollouts in the event loop: those of the open training steps, and of evaluations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vf.environments.episode import Activity
from vf.environments.runner import Repeats
from vf.environments.sandboxes import brings_sandboxes
from vf.evaluation.evaluate import Evaluation, Job, in_batches, run_jobs
from vf.inference.leases import Leases
from vf.inference.model import Sampling
from vf.runtime.errors import fresh
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Origin, Trace
from vf.trainer.collecting.mixture import Mixture
from vf.trainer.collecting.rollout_slots import RolloutSlots
from vf.trainer.collecting.runners import Ended, Runner
from vf.trainer.collecting.step_rollouts import StepRollouts, check_failures, is_overlong
from vf.trainer.run.group import Group
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import TrainerArgs

log = logging.getLogger(__name__)

EVALUATION = 0  # the step under which evaluation rollouts are listed


@dataclass(slots=True)
class Queue:
    """The part of a checkpoint that describes rollouts ahead of training.

    Attributes:
        cursor: The state of the mixture, with its task cursors and curricula.
        steps: The state of every open step.
        traces: The finished rollouts of these steps.
        version: The version of the weights that are served when it is restored. A step that may not
            start with these, because ``ahead`` is less than it was, waits; None lets all start up
            to ``max_steps``.
    """

    cursor: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    version: int | None = None


def eval_sampling(args: TrainerArgs) -> Sampling:
    """Return how evaluations sample: as training does, except for what they have set themselves."""
    own = {
        "temperature": args.eval_temperature,
        "top_p": args.eval_top_p,
        "top_k": args.eval_top_k,
        "min_p": args.eval_min_p,
        "max_tokens": args.eval_max_tokens,
    }
    own = {name: value for name, value in own.items() if value is not None}
    return args.sampling.with_(**own, trained=False)


class Orchestrator:
    """Has rollouts run, for training and for evaluation.

    Coroutines must run in the rollouts' event loop; the other methods may be called from any
    thread.

    Training step s begins with weights of version s - 1. Its rollouts start once the served
    version is at least s - 1 - ``ahead``, and step s trains on them, so no token is older than
    that.

    Args:
        members: The environments, with their tasks.
        runner: Runs the rollouts.
        args: ``[trainer.args]``.
        leases: The model's servers; rollouts wait while none is up.
        ahead: Steps that generation may run ahead of training.
        on_trace: Called with every finished training rollout and its step.
        beat: Called whenever a rollout makes progress.
        note: Called with what the user should know.
    """

    def __init__(
        self,
        members: Sequence[RunEnvironment],
        runner: Runner,
        *,
        args: TrainerArgs,
        leases: Leases,
        ahead: int,
        on_trace: Callable[[int, Ended], None] = lambda step, ended: None,
        beat: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.members = members
        self.runner = runner
        self.mixture = Mixture(members)
        self._args = args
        self._leases = leases
        self._ahead = ahead
        self._on_trace = on_trace
        self._beat = beat
        self._note = note
        self._slots = RolloutSlots(args.max_concurrent, args.eval_share)
        self._open: dict[int, StepRollouts] = {}
        self._waiting: dict[int, Queue] = {}  # steps that were saved, and may not start yet
        self._live: dict[Activity, int] = {}  # with their step
        self._fetching: asyncio.Future[None] | None = None

    async def open(self, first: int, version: int) -> None:
        """Start the rollouts of every step that may start.

        Args:
            first: The step to be trained next.
            version: The version of the weights that are served.
        """
        for step in range(first, max(first, self._last_step(version)) + 1):
            if step in self._open:
                continue
            self._open[step] = self._step(step)
            if (saved := self._waiting.pop(step, None)) is not None:
                self._open[step].restore(saved.steps[0], saved.traces)
            else:
                self._open[step].start()
        self._fetch_ahead()

    async def next_group(self, step: int) -> Group | None:
        """Wait for a group of an open step to finish; None once all have been returned.

        Raises:
            TrainingError: If more rollouts failed than ``max_error_rate`` allows; names the cause.
        """
        group = await self._open[step].next_group()
        if group is None:
            del self._open[step]
        return group

    def check(self) -> None:
        """Raise the error that ended the rollouts of a step ahead, or keeps any from running.

        Raises:
            TrainingError: If more rollouts failed than ``max_error_rate`` allows, or worker
                processes end again and again.
            ConfigError: If the environment cannot be made in a worker process.
        """
        self.runner.check()
        for rollouts in list(self._open.values()):
            if rollouts.error is not None:
                raise fresh(rollouts.error)

    async def evaluate(self, on_trace: Callable[[Ended], None]) -> dict[str, Evaluation]:
        """Evaluate in all environments at once; return what was found by their names.

        Args:
            on_trace: Called with every rollout as it ends.

        Raises:
            TrainingError: If more rollouts failed than ``max_error_rate`` allows; names the cause.
        """
        try:
            async with asyncio.TaskGroup() as group:
                running = {
                    member.name: group.create_task(self._evaluate(member, on_trace))
                    for member in self.members
                }
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        return {name: task.result() for name, task in running.items()}

    async def _evaluate(
        self, member: RunEnvironment, on_trace: Callable[[Ended], None]
    ) -> Evaluation:
        """Run the rollouts of each evaluation task, always with the same seeds."""
        args, environment = member.args, member.environment
        sampling = eval_sampling(args)
        base = derive_seed(args.seed, "eval")
        lines: dict[str, bytes | None] = {}  # of traces that have not been passed on, by their id
        traces_by_job: dict[tuple[str, int], Trace] = {}

        async def run(job: Job) -> Trace:
            ended = await self._run(member, job.task, job.seed(base), None, sampling)
            lines[ended.trace.id] = ended.line
            return ended.trace

        async def score(traces: Sequence[Trace]) -> None:
            for ended in await self.runner.score_group(member.name, traces):
                lines[ended.trace.id] = ended.line

        def keep(job: Job, trace: Trace) -> None:
            traces_by_job[job.task.id, job.index] = trace
            on_trace(Ended(trace, lines.pop(trace.id)))

        numbers = range(args.eval_rollouts_per_example)
        jobs = [[Job(task, number) for number in numbers] for task in member.eval_tasks]
        await run_jobs(
            environment,
            in_batches(environment, jobs),
            run,
            max_concurrent=args.max_concurrent,
            on_trace=keep,
            fetch=partial(self.runner.prefetch, member.name),
            score=score,
        )
        result = Evaluation(
            [traces_by_job[job.task.id, job.index] for task_jobs in jobs for job in task_jobs]
        )
        counted = result.traces
        if args.overlong_prompts == "skip":
            counted = [trace for trace in counted if not is_overlong(trace)]
        failed = [trace for trace in counted if trace.error is not None]
        check_failures(failed, len(result.traces), args.max_error_rate)
        return result

    async def try_each(self) -> list[Trace]:
        """Run one rollout of each environment's first train task, one after the other."""
        traces = []
        for member in self.members:
            task, sampling = self.mixture.cursors[member.name].first, member.args.sampling
            with self._doing(task, "starting", EVALUATION) as activity:
                ended = await self.runner.rollout(
                    member.name, task, sampling=sampling, seed=0, origin=None, activity=activity
                )
            traces.append(ended.trace)
        return traces

    def activities(self, step: int | None = None) -> list[Activity]:
        """Return what the rollouts of one step, or of all, are doing now."""
        return [activity for activity, of in self._live.copy().items() if step in (None, of)]

    async def queue(self) -> Queue:
        """Return what is ahead of training, to be saved."""
        queue = Queue(self.mixture.state())
        for rollouts in self._open.values():
            state, traces = rollouts.state()
            queue.steps.append(state)
            queue.traces += traces
        for saved in self._waiting.values():
            queue.steps += saved.steps
            queue.traces += saved.traces
        return queue

    async def restore(self, queue: Queue) -> None:
        """Replace what is under way by a saved queue, and resume it.

        Steps that may not start yet wait until :meth:`open`.

        Raises:
            ConfigError: If it holds a task that the environment does not have.
        """
        await self.stop()
        self.mixture.load(queue.cursor)
        for state in queue.steps:
            step = int(state["step"])
            if step > self._last_step(queue.version):
                own = [
                    trace for trace in queue.traces if trace.origin and trace.origin.step == step
                ]
                self._waiting[step] = Queue(queue.cursor, [state], own)
                continue
            self._open[step] = self._step(step)
            self._open[step].restore(state, queue.traces)

    def _last_step(self, version: int | None) -> int:
        """Return the last step whose rollouts may run while weights of a version are served."""
        last = self._args.max_steps
        return last if version is None else min(last, version + 1 + self._ahead)

    def _fetch_ahead(self) -> None:
        """Have the images built or pulled that the step after the open ones needs."""
        coming = {
            member.name: self.mixture.cursors[member.name].next(self._args.groups_per_step)
            for member in self.members
            if brings_sandboxes(member.environment)
        }
        if coming and (self._fetching is None or self._fetching.done()):
            fetching = [self.runner.prefetch(name, tasks) for name, tasks in coming.items()]
            self._fetching = asyncio.ensure_future(_all_of(fetching))
            self._fetching.add_done_callback(_look_at)

    async def stop(self) -> None:
        """End the training rollouts under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        for rollouts in self._open.values():
            await rollouts.stop()
        self._open.clear()
        self._waiting.clear()

    def _step(self, step: int) -> StepRollouts:
        return StepRollouts(
            step,
            run=self._run,
            score=self.runner.score_group,
            doing=lambda task, doing: self._doing(task, doing, step),
            mixture=self.mixture,
            args=self._args,
            oldest=step - 1 - self._ahead,
            on_trace=lambda ended: self._on_trace(step, ended),
            note=self._note,
        )

    async def _run(
        self,
        member: RunEnvironment,
        task: Task,
        seed: int,
        origin: Origin | None,
        sampling: Sampling,
    ) -> Ended:
        """Run a rollout once it has its image and a place; repeat it if it is lost under way.

        Args:
            member: The environment.
            task: The problem.
            seed: The seed of the rollout.
            origin: The rollout's step, group and number in training; None for evaluation.
            sampling: The sampling settings.
        """
        step, rank = EVALUATION, None
        if origin is not None:
            step, rank = origin.step, (origin.step, origin.group)
        with self._doing(task, "image", step) as activity:
            if rank is not None and brings_sandboxes(member.environment):  # else `evaluate` has
                await self.runner.prefetch(member.name, [task])  # holds no place: others overtake
            activity.enter("place")
            async with self._slots.hold(rank):
                repeats = Repeats(waits=True)
                while True:
                    activity.enter("server")
                    await self._leases.available()
                    ended = await self.runner.rollout(
                        member.name,
                        task,
                        sampling=sampling,
                        seed=seed,
                        origin=origin,
                        activity=activity,
                    )
                    if not repeats.repeat(ended.trace):
                        return ended

    @contextmanager
    def _doing(self, task: Task, doing: str, step: int) -> Iterator[Activity]:
        """List an activity for a task of a step while the block runs."""
        activity = Activity(task, self._beat)
        activity.enter(doing)
        self._live[activity] = step
        try:
            yield activity
        finally:
            del self._live[activity]
            self._beat()


async def _all_of(works: Sequence[Awaitable[None]]) -> None:
    """Wait for several, and end all if one fails."""
    await asyncio.gather(*works)


def _look_at(fetching: asyncio.Future[None]) -> None:
    """Leave what failed to the rollouts that need it."""
    if not fetching.cancelled() and (error := fetching.exception()) is not None:
        log.warning("images could not be fetched ahead: %s", error)
