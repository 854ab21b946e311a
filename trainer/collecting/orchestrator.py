"""Rollouts beside the trainer: the steps that are open, and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vf.environments.environment import Environment
from vf.environments.runner import rollout
from vf.evaluation.evaluate import Evaluation, evaluate
from vf.inference.model import Model, Sampling
from vf.inference.serving import Serving
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Trace
from vf.trainer.collecting.crew import EVALUATION, Crew
from vf.trainer.collecting.places import Places
from vf.trainer.collecting.step_rollouts import StepRollouts, check_failures
from vf.trainer.collecting.task_cursor import TaskCursor
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs

OnStepTrace = Callable[[int, Trace], None]


@dataclass(slots=True)
class Queue:
    """What a checkpoint keeps of the rollouts that were ahead of training.

    Attributes:
        cursor: The task cursor's state.
        steps: The state of every open step.
        traces: The rollouts of these that have ended.
    """

    cursor: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)


class Orchestrator:
    """Runs rollouts against a model, for training and for evaluation.

    Coroutines belong to the event loop of the rollouts; what is no coroutine may be called from
    any thread.

    Training step s begins with weights of version s - 1. Its rollouts start once the served
    version is at least s - 1 - ``ahead``, and are trained on in step s: so no
    token is older than that.

    Args:
        environment: Where the model acts.
        model: Who acts.
        tasks: The train split.
        eval_tasks: What to evaluate on.
        args: ``[trainer.args]``.
        serving: The model's server, whose outages are waited out.
        ahead: Steps that generation may run ahead of training.
        on_trace: Called with every finished training rollout and its step.
        beat: Called whenever any rollout gets on.
    """

    def __init__(
        self,
        environment: Environment,
        model: Model,
        tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
        args: TrainerArgs,
        serving: Serving,
        *,
        ahead: int,
        on_trace: OnStepTrace = lambda step, trace: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._args = args
        self._ahead = ahead
        self._eval_tasks = eval_tasks
        self._on_trace = on_trace
        sampling = Sampling(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
        )
        self.crew = Crew(environment, model, sampling, serving, beat)
        self.cursor = TaskCursor(tasks, args)
        self._places = Places(args.max_concurrent, args.eval_share)
        self._open: dict[int, StepRollouts] = {}

    async def open(self, first: int, version: int) -> None:
        """Start the rollouts of every step that may start.

        Args:
            first: The step to be trained next.
            version: Of the weights that are served.
        """
        last = min(self._args.max_steps, version + 1 + self._ahead)
        for step in range(first, max(first, last) + 1):
            if step not in self._open:
                self._open[step] = self._step(step)
                self._open[step].start()

    async def next_group(self, step: int) -> Group | None:
        """Wait for a group of an open step to finish; None once all have been returned.

        A group that is too old is not returned: its task is done over.

        Raises:
            TrainingError: More rollouts failed than ``max_error_rate`` allows; names the cause.
        """
        rollouts = self._open[step]
        while (group := await rollouts.next_group()) is not None and self._too_old(group, step):
            rollouts.do_over(group)
        if group is None:
            del self._open[step]
        return group

    def check(self) -> None:
        """Raise what broke the rollouts of a step ahead.

        Raises:
            TrainingError: More rollouts failed than ``max_error_rate`` allows.
        """
        for rollouts in list(self._open.values()):
            if rollouts.error is not None:
                raise rollouts.error

    async def evaluate(self, on_trace: Callable[[Trace], None]) -> Evaluation:
        """Run one rollout of each evaluation task, always with the same seeds.

        Raises:
            TrainingError: More rollouts failed than ``max_error_rate`` allows; names the cause.
        """
        args, crew = self._args, self.crew

        async def run(
            environment: Environment, task: Task, model: Model, *, sampling: Sampling, seed: int
        ) -> Trace:
            return await crew.run(task, seed, EVALUATION, self._places.evaluating())

        result = await evaluate(
            crew.environment,
            crew.model,
            tasks=self._eval_tasks,
            max_concurrent=args.max_concurrent,
            sampling=crew.sampling,
            seed=derive_seed(args.seed, "eval"),
            on_trace=on_trace,
            check=False,
            run=run,
        )
        failed = [trace for trace in result.traces if trace.error is not None]
        check_failures(failed, len(result.traces), args.max_error_rate)
        return result

    async def try_one(self) -> Trace:
        """Run one rollout of the first train task."""
        crew = self.crew
        return await rollout(
            crew.environment, self.cursor.first, crew.model, sampling=crew.sampling
        )

    async def queue(self) -> Queue:
        """Return what is ahead of training, to be saved."""
        queue = Queue(self.cursor.state())
        for rollouts in self._open.values():
            state, traces = rollouts.state()
            queue.steps.append(state)
            queue.traces += traces
        return queue

    async def restore(self, queue: Queue) -> None:
        """Go on where a saved queue was, instead of what is under way.

        Raises:
            ConfigError: It holds a task that the environment does not have.
        """
        await self.stop()
        self.cursor.load(queue.cursor)
        by_group: dict[int, list[Trace]] = {}
        for trace in queue.traces:
            by_group.setdefault(trace.info["group"], []).append(trace)
        for state in queue.steps:
            step = int(state["step"])
            self._open[step] = self._step(step)
            groups = []
            for saved in state["groups"]:
                group, traces = self._group(saved), by_group.get(saved["number"], [])
                group.traces = traces
                stale = self._too_old(group, step)
                groups.append((group, saved["done"] and not stale, [] if stale else traces))
            self._open[step].restore(state, groups)

    async def stop(self) -> None:
        """End the training rollouts under way."""
        for rollouts in self._open.values():
            await rollouts.stop()
        self._open.clear()

    def _group(self, saved: dict[str, Any]) -> Group:
        task = self.cursor.task(saved["task"])
        if task is None:
            raise ConfigError(
                f"the checkpoint has rollouts of the task {saved['task']!r}, which the environment "
                "does not have: it has changed since"
            )
        return Group(task, number=saved["number"], epoch=saved["epoch"], stopped=saved["stopped"])

    def _too_old(self, group: Group, step: int) -> bool:
        oldest = group.oldest_version
        return oldest is not None and oldest < step - 1 - self._ahead

    def _step(self, step: int) -> StepRollouts:
        return StepRollouts(
            step,
            self.crew,
            self._places,
            self.cursor,
            self._args,
            lambda trace: self._on_trace(step, trace),
        )
