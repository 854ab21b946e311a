"""Measuring a model in an environment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from textwrap import shorten
from typing import Any

import pydantic_core

from vf.environments.environment import Environment, Split
from vf.environments.runner import repeat_lost, rollout
from vf.environments.sandboxes import brings_sandboxes, check_sandboxes, prefetch
from vf.inference.model import Model, Sampling
from vf.rubrics.group import score_group
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, VfError, author_lines
from vf.runtime.garbage import fewer_collections
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Trace

AHEAD = 64  # rollouts whose images are built or pulled while those before them run


@dataclass(slots=True)
class Evaluation:
    """The traces of an evaluation, and what they say.

    Rollouts that failed, and those that the rubric could not score, count in no mean but
    ``mean_reward_of_all``.
    """

    traces: list[Trace] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return it in a line: whoever wants the traces prints them."""
        failed = f", {self.errors} failed" if self.errors else ""
        return f"<Evaluation of {len(self.traces)} rollouts: {self.mean_reward:.3f}{failed}>"

    @property
    def rewards(self) -> list[float]:
        """The rewards of the rollouts that were scored."""
        return [trace.reward for trace in self.traces if trace.reward is not None]

    @property
    def mean_reward(self) -> float:
        """Mean reward of the scored rollouts, in [0, 1]; NaN if there are none."""
        return fmean(self.rewards) if self.rewards else float("nan")

    @property
    def mean_reward_of_all(self) -> float:
        """Mean reward if rollouts that were not scored count as 0; NaN if there are no rollouts.

        Where it is lower than ``mean_reward``, something kept rollouts from being scored: see that
        it is not the model, on tasks that it would lose.
        """
        return sum(self.rewards) / len(self.traces) if self.traces else float("nan")

    @property
    def errors(self) -> int:
        """How many rollouts failed and so have no reward."""
        return sum(trace.error is not None for trace in self.traces)

    @property
    def unscored(self) -> int:
        """How many rollouts went well, but were left without a reward by the rubric."""
        return sum(trace.error is None and trace.reward is None for trace in self.traces)


def take_tasks(environment: Environment, split: Split, count: int | None = None) -> list[Task]:
    """Return the first ``count`` tasks of a split (all by default).

    Raises:
        ConfigError: If the split is empty, one of its tasks has no id, two share one or one cannot
            be written as JSON, or ``tasks`` raised an error (shown with the author's lines of the
            traceback).
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    for task in _listed(environment, split):
        if count is not None and len(tasks) >= count:
            break
        _check_task(environment, split, task, len(tasks))
        if task.id in seen:
            raise ConfigError(
                f"{environment.id}: two {split} tasks have the id {task.id!r}; the second is "
                f"number {len(tasks) + 1}. Give each an id of its own, that stays the same"
            )
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise ConfigError(f"{environment.id}: the {split} split has no tasks")
    return tasks


def _check_task(environment: Environment, split: Split, task: object, index: int) -> None:
    """See that what ``tasks(split)`` gave is a task with an id."""
    where = f"{environment.id}: {split} task number {index + 1}"
    if not isinstance(task, Task):
        raise ConfigError(
            f"{where} is not a vf.Task, but {type(task).__name__}: {shorten(repr(task), 80)}"
        )
    if not isinstance(task.id, str) or not task.id.strip():
        raise ConfigError(
            f"{where} has no id, but {task.id!r} (its prompt: {shorten(str(task.prompt), 80)}). "
            "Give it a text that no other task of the split has, and that stays the same between "
            "runs, such as its row's key"
        )
    if not isinstance(task.prompt, str | list):
        raise ConfigError(
            f"{where}, {task.id!r}: its prompt must be text or a list of chat messages, got "
            f"{type(task.prompt).__name__}"
        )
    if not isinstance(task.info, dict):
        raise ConfigError(
            f"{where}, {task.id!r}: its info must be a dict, got {type(task.info).__name__}"
        )
    for name in ("id", "prompt", "answer", "info"):
        try:
            pydantic_core.to_json(getattr(task, name))
        except ValueError as error:  # an object of Python's, or half a surrogate pair
            raise ConfigError(
                f"{where}, {task.id!r}: its {name} cannot be written as JSON: {error}. Make text, "
                "numbers, lists and dicts of it"
            ) from error


def _listed(environment: Environment, split: Split) -> Iterator[Task]:
    """Yield the tasks; errors in the author's code are reported with the author's lines."""
    try:
        listed: object = environment.tasks(split)
        if not isinstance(listed, Iterable):
            raise ConfigError(
                f"{environment.id}: tasks({split!r}) gave {type(listed).__name__}; let it yield "
                "tasks, or return a list of them"
            )
        yield from listed
    except (VfError, OSError):
        raise
    except Exception as error:
        raise ConfigError(
            f"{environment.id}: tasks({split!r}) failed:\n"
            f"{author_lines(error, environment.__module__)}"
        ) from error


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to run: the task, and the rollout's number among those of the task."""

    task: Task
    index: int

    def seed(self, seed: int) -> int:
        """Return the seed of the rollout in an evaluation with this seed."""
        return derive_seed(seed, "eval", self.task.id, self.index)


async def run_jobs(
    environment: Environment,
    batches: Iterable[Sequence[Job]],
    run: Callable[[Job], Awaitable[Trace]],
    *,
    max_concurrent: int,
    on_trace: Callable[[Job, Trace], None],
    fetch: Callable[[Sequence[Task]], Awaitable[None]] | None = None,
    score: Callable[[Sequence[Trace]], Awaitable[object]] | None = None,
) -> None:
    """Run rollouts, keeping none of them.

    Args:
        environment: The environment; its group rewards score the traces of a batch together.
        batches: Drawn from as slots become free, and some ahead where tasks bring their images.
            The rollouts of a batch are reported together: those of one task, if the rubric has
            group rewards, otherwise single ones.
        run: Runs one rollout.
        max_concurrent: Most rollouts in flight at once.
        on_trace: Called with each as its batch finishes.
        fetch: Has the images of tasks built or pulled; by default this process does.
        score: Lets the group rewards score a batch in place; by default this process does.

    Raises:
        Exception: If ``run`` or ``on_trace`` raises: the first error, as itself.
    """
    slots = asyncio.Semaphore(max_concurrent)
    # A rollout that waits for an image holds no slot, so that others overtake it.
    drawn = asyncio.Semaphore(max_concurrent + (AHEAD if brings_sandboxes(environment) else 0))

    fetch = fetch or partial(prefetch, environment)

    async def one(job: Job) -> Trace:
        try:
            if brings_sandboxes(environment):
                await fetch([job.task])
            async with slots:
                return await run(job)
        finally:
            drawn.release()

    async def whole(batch: Sequence[Job], runs: Sequence[asyncio.Task[Trace]]) -> None:
        traces = [await run for run in runs]
        if score is None:
            await score_group(environment.rubric, traces, environment.timeout)
        elif environment.rubric.group_rewards:
            await score(traces)
        for job, trace in zip(batch, traces, strict=True):
            on_trace(job, trace)

    try:
        with fewer_collections():
            async with asyncio.TaskGroup() as group:
                for batch in batches:
                    runs = []
                    for job in batch:
                        await drawn.acquire()
                        runs.append(group.create_task(one(job)))
                    group.create_task(whole(batch, runs))
                    await asyncio.sleep(0)  # thousands that begin at once leave others their turn
    except BaseExceptionGroup as error:
        raise error.exceptions[0] from None


def in_batches(environment: Environment, jobs: Iterable[Sequence[Job]]) -> Iterable[Sequence[Job]]:
    """Return the jobs of each task as :func:`run_jobs` wants them: whole, or one by one."""
    if environment.rubric.group_rewards:
        return jobs
    return ([job] for task_jobs in jobs for job in task_jobs)


async def lasting_rollout(*args: Any, **settings: Any) -> Trace:
    """Run one rollout, and again if the host of its sandbox was lost."""
    return await repeat_lost(partial(rollout, *args, **settings))


async def evaluate(
    environment: Environment,
    model: Model,
    *,
    tasks: Sequence[Task] | int | None = None,
    rollouts_per_example: int = 1,
    max_concurrent: int = 64,
    sampling: Sampling | None = None,
    seed: int = 0,
    on_trace: Callable[[Trace], None] | None = None,
    check: bool = True,
    run: Callable[..., Awaitable[Trace]] = lasting_rollout,
) -> Evaluation:
    """Run a model on tasks of the eval split.

    Args:
        environment: The environment to act in.
        model: The model that acts.
        tasks: The tasks, or how many of the eval split's to take; all by default.
        rollouts_per_example: Rollouts of each task.
        max_concurrent: Maximum number of concurrent rollouts.
        sampling: The sampling settings.
        seed: The same seed gives the same rollouts (as far as the model can).
        on_trace: Called with each trace as it finishes; with all of a task's at once if the rubric
            has group rewards, because only then are they scored.
        check: First check that everything the environment needs is there, and start it.
        run: Runs one rollout, with the arguments of :func:`~vf.environments.runner.rollout`; by
            default again if the host of its sandbox was lost.

    Returns:
        The traces in the order of the tasks, failed ones included.

    Raises:
        ConfigError: If there are no tasks, a setting is out of range, or something that the
            environment needs is missing.
    """
    if rollouts_per_example < 1 or max_concurrent < 1:
        raise ConfigError("rollouts_per_example and max_concurrent must be at least 1")
    environment.check_settings()
    if tasks is None or isinstance(tasks, int):
        tasks = take_tasks(environment, "eval", tasks)
    if not tasks:
        raise ConfigError("there are no tasks to evaluate on")
    check_sandboxes(environment, tasks)
    if check:
        await call(environment.check)
        await call(environment.start)
    traces: dict[int, Trace] = {}  # by the job's identity: own tasks may share ids

    async def one(job: Job) -> Trace:
        seed_of_job = job.seed(seed)
        return await run(environment, job.task, model, sampling=sampling, seed=seed_of_job)

    def keep(job: Job, trace: Trace) -> None:
        traces[id(job)] = trace
        if on_trace is not None:
            on_trace(trace)

    jobs = [[Job(task, index) for index in range(rollouts_per_example)] for task in tasks]
    await run_jobs(
        environment,
        in_batches(environment, jobs),
        one,
        max_concurrent=max_concurrent,
        on_trace=keep,
    )
    return Evaluation([traces[id(job)] for batch in jobs for job in batch])
