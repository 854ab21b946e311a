"""The rollouts of one training step: groups that start together and finish one by one."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from vf.inference.model import Sampling
from vf.inference.models.token_model import PromptTooLong
from vf.runtime.errors import ConfigError, TrainingError
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Origin, Trace
from vf.trainer.collecting.mixture import Mixture
from vf.trainer.collecting.runners import Ended
from vf.trainer.collecting.task_cursor import Draw
from vf.trainer.run.group import Group
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import TrainerArgs

ATTEMPTS = 3  # of one rollout, before its group does without it


class _Overlong(Exception):
    """A group's task has too long a first prompt, as this rollout found out."""

    def __init__(self, ended: Ended) -> None:
        self.ended = ended


Run = Callable[[RunEnvironment, Task, int, Origin, Sampling], Awaitable[Ended]]
Score = Callable[[str, Sequence[Trace]], Awaitable[list[Ended]]]
Doing = Callable[[Task, str], AbstractContextManager[Any]]


class StepRollouts:
    """All rollouts of one step.

    A rollout that fails is replaced by another of the same task. A group that ends with too few
    scored rollouts stays, with nothing to teach. A rollout that the rubric leaves without a reward
    is not replaced: it did not fail, and a rubric that cannot score this task would be called
    forever. A task whose first prompt is too long is replaced by another, and left out from then
    on, or ends the run (``overlong_prompts``). A group without spread is followed by one of another
    task, within ``max_refill``. Another task is one of the same environment.

    Args:
        step: Number of the step.
        run: Runs one rollout, given its environment, its task, its seed, which rollout of the run
            it is, and how to sample.
        score: Scores a whole group, in place, given its environment's name; for environments whose
            rubric has group rewards.
        doing: Lists an activity, given a task and what is done for it, while a block runs.
        mixture: The source of tasks.
        args: ``[trainer.args]``.
        oldest: Version of the oldest weights whose tokens may be trained on.
        on_trace: Called with every rollout as it ends, failed ones included; where the rubric has
            group rewards, with those of a group once they are scored.
        note: Called with what the user should know.
    """

    def __init__(
        self,
        step: int,
        *,
        run: Run,
        score: Score,
        doing: Doing,
        mixture: Mixture,
        args: TrainerArgs,
        oldest: int,
        on_trace: Callable[[Ended], None],
        note: Callable[[str], None],
    ) -> None:
        self._step = step
        self._run = run
        self._doing = doing
        self._score = score
        self._mixture = mixture
        self._args = args
        self._oldest = oldest
        self._on_trace = on_trace
        self._note = note
        self._refills = round(args.groups_per_step * args.max_refill)
        self._groups: dict[int, Group] = {}  # by their number
        self._ended: dict[int, dict[int, Trace]] = {}  # rollouts of unfinished groups, by index
        self._failures: list[Trace] = []
        self._finished: deque[Group] = deque()
        self._changed = asyncio.Event()
        self._work: set[asyncio.Task[None]] = set()
        self.error: BaseException | None = None

    def start(self) -> None:
        """Draw the step's tasks and start their rollouts."""
        for draw in self._mixture.draws(self._args.groups_per_step):
            self._launch(self._group(draw))

    async def next_group(self) -> Group | None:
        """Wait for a group to finish; None once all have been returned, and taken note of.

        A group that is too old is retried instead.

        Raises:
            TrainingError: If more rollouts failed than ``max_error_rate`` allows; names the cause.
        """
        while self.error is None:
            if self._finished:
                group = self._finished.popleft()
                if not self._too_old(group):
                    return group
                self._launch(self._group(_draw(group)))
                continue
            if not self._work:
                for note in self._mixture.observe([*self._groups.values()]):
                    self._note(note)
                return None
            self._changed.clear()
            await self._changed.wait()
        raise self.error

    async def stop(self) -> None:
        """Cancel what is under way."""
        work = [*self._work]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    def state(self) -> tuple[dict[str, Any], list[Trace]]:
        """Return what a checkpoint needs: the step's groups as JSON, and their traces."""
        traces: list[Trace] = []
        groups = []
        for number, group in self._groups.items():
            done = number not in self._ended
            held = [*group.traces, *group.unscored] if done else self._ended[number].values()
            traces += [*held, *group.failed]
            groups.append(
                {
                    "number": number,
                    "environment": group.environment,
                    "task": group.task.id,
                    "epoch": group.epoch,
                    "stopped": group.stopped,
                    "done": done,
                }
            )
        return {"step": self._step, "refills": self._refills, "groups": groups}, traces

    def restore(self, state: dict[str, Any], saved_traces: Sequence[Trace]) -> None:
        """Resume a saved step: finished rollouts are kept, the others start again.

        Groups of an environment that the run no longer has are replaced by new draws. Earlier
        failures do not count against ``max_error_rate``: whoever resumes has fixed what made the
        run stop.

        Args:
            state: The result of :meth:`state`.
            saved_traces: The step's traces, and maybe those of other steps.

        Raises:
            ConfigError: If the environment does not have one of the tasks.
        """
        self._refills = state["refills"]
        groups = [
            saved for saved in state["groups"] if self._environment(saved) in self._mixture.members
        ]
        if removed := len(state["groups"]) - len(groups):
            for draw in self._mixture.draws(removed):
                self._launch(self._group(draw))
        for saved in groups:
            group, done = self._saved_group(saved), saved["done"]
            traces = [t for t in saved_traces if t.origin and t.origin.group == group.number]
            group.traces = traces
            if self._too_old(group):
                done, traces = False, []
            if done:
                self._groups[group.number] = group
                group.take(traces)
                self._finished.append(group)
            else:
                group.failed = [trace for trace in traces if trace.error is not None]
                ended = {t.origin.rollout: t for t in traces if t.origin and t.error is None}
                self._launch(group, ended)
            for trace in traces:
                if done or trace.error is not None or not self._together(group):
                    self._on_trace(Ended(trace))

    def _group(self, draw: Draw, stopped: int = 0) -> Group:
        return Group(
            draw.task,
            number=draw.number,
            epoch=draw.epoch,
            stopped=stopped,
            min_size=self._mixture.members[draw.environment].args.min_group_size,
            environment=draw.environment,
        )

    def _together(self, group: Group) -> bool:
        """Return whether the rollouts of a group are scored together, once all have ended."""
        return bool(self._mixture.members[group.environment].environment.rubric.group_rewards)

    def _environment(self, saved: dict[str, Any]) -> str:
        """Return the environment's name of a saved group; early checkpoints held none."""
        name: str = saved.get("environment", next(iter(self._mixture.members)))
        return name

    def _saved_group(self, saved: dict[str, Any]) -> Group:
        name = self._environment(saved)
        task = self._mixture.cursors[name].task(saved["task"])
        if task is None:
            raise ConfigError(
                f"the checkpoint has rollouts of the task {saved['task']!r}, which the environment "
                f"{name!r} does not have: it has changed since"
            )
        return self._group(Draw(task, saved["number"], saved["epoch"], name), saved["stopped"])

    def _too_old(self, group: Group) -> bool:
        oldest = group.oldest_version
        return oldest is not None and oldest < self._oldest

    def _launch(self, group: Group, ended: dict[int, Trace] | None = None) -> None:
        self._groups[group.number] = group
        self._ended[group.number] = ended or {}
        task = asyncio.get_running_loop().create_task(self._whole(group))
        self._work.add(task)
        task.add_done_callback(self._end_of)

    def _end_of(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.error = self.error or error
            for other in self._work:
                other.cancel()
        self._changed.set()

    async def _whole(self, group: Group) -> None:
        try:
            traces = await self._enough(group)
        except _Overlong as found:
            self._replace(group, found.ended)
            return
        if self._together(group):
            with self._doing(group.task, "score"):
                scored = await self._score(group.environment, traces)
            for ended in scored:
                self._on_trace(ended)
        self._failures += [trace for trace in traces if trace.error is not None]
        group.take(traces)
        del self._ended[group.number]
        self._check_failures()
        if group.uniform and self._refills:
            self._refills -= 1
            self._launch(self._group(self._mixture.draw(group.environment)))
        self._finished.append(group)

    def _replace(self, group: Group, ended: Ended) -> None:
        """Leave a task out, and begin a group of another in place of its group.

        Raises:
            TrainingError: If ``overlong_prompts`` says that it ends the run.
            ConfigError: If no task is left.
        """
        error = ended.trace.error
        message = error.message if error is not None else ""
        self._on_trace(ended)
        if self._args.overlong_prompts == "error":
            raise TrainingError(
                f"task {group.task.id!r}: {message}, and overlong_prompts = 'error'; raise "
                "max_prompt_len, shorten the prompt, or have such tasks left out with 'skip'"
            )
        if self._mixture.cursors[group.environment].leave_out(group.task.id):
            self._note(f"task {group.task.id!r} is left out of the run: {message}")
        del self._groups[group.number], self._ended[group.number]
        self._launch(self._group(self._mixture.draw(group.environment, instead=True)))

    async def _enough(self, group: Group) -> list[Trace]:
        """Run the group's rollouts, and return as many as it needs.

        They are in the order of the seeds, not of arrival: a resumed run sums in the same order.

        Raises:
            _Overlong: If the task's first prompt is too long.
        """
        args, ended = self._args, self._ended[group.number]
        started = math.ceil(args.rollouts_per_example * args.oversample)
        runs = {
            asyncio.create_task(self._one(group, index))
            for index in range(started)
            if index not in ended and len(ended) < args.rollouts_per_example
        }
        left = set(runs)
        try:
            while left and len(ended) < args.rollouts_per_example:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for run in done:
                    run.result()
        finally:
            group.stopped += len(left)
            for run in left:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
        return [ended[index] for index in sorted(ended)]

    async def _one(self, group: Group, index: int) -> None:
        origin = Origin(self._step, group.number, index)
        member = self._mixture.members[group.environment]
        tried = sum(trace.origin == origin for trace in group.failed)
        for attempt in range(tried, ATTEMPTS):
            seed = derive_seed(self._args.seed, "train", group.number, index, attempt)
            sampling = member.args.sampling
            finished = await self._run(member, group.task, seed, origin, sampling)
            trace = finished.trace
            if is_overlong(trace):
                raise _Overlong(finished)
            ended = self._ended[group.number]
            if trace.error is None and len(ended) >= self._args.rollouts_per_example:
                group.stopped += 1  # the others came first, if only by a moment
                return
            if trace.error is None:
                ended[index] = trace
            if trace.error is not None or not self._together(group):
                self._on_trace(finished)
            if trace.error is None:
                return
            group.failed.append(trace)
            self._failures.append(trace)
            self._check_failures()

    def _check_failures(self) -> None:
        check_failures(self._failures, self._args.batch_size, self._args.max_error_rate)


def _draw(group: Group) -> Draw:
    return Draw(group.task, group.number, group.epoch, group.environment)


def is_overlong(trace: Trace) -> bool:
    """Return whether a rollout never began because the task's first prompt is too long."""
    return trace.error is not None and trace.error.boundary == PromptTooLong.boundary


def check_failures(failures: Sequence[Trace], total: int, most: float) -> None:
    """Raise TrainingError if too many rollouts failed; it names the most frequent cause.

    Args:
        failures: The traces of those that failed.
        total: The number of rollouts that were planned.
        most: ``max_error_rate``.
    """
    if len(failures) <= most * total:
        return
    errors = [trace.error for trace in failures if trace.error is not None]
    causes = Counter((error.boundary, error.message) for error in errors)
    (boundary, message), count = causes.most_common(1)[0]
    first = next(error for error in errors if error.message == message)
    raise TrainingError(
        f"{len(failures)} of {total} rollouts failed, over max_error_rate = {most:g}. "
        f"Most often ({count}×), in the {boundary}: {message}\n{first.traceback}"
    )
