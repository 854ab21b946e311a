"""Collecting the rollouts of a step: independent coroutines, replaced where they fail."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from vf.environments.environment import Environment
from vf.environments.evaluate import Evaluation, evaluate
from vf.environments.runner import rollout
from vf.inference.model import Model, Sampling
from vf.inference.serving import Serving
from vf.rubrics.group import score_group
from vf.traces.errors import ServerDown, TrainingError
from vf.traces.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Trace
from vf.trainer.collecting.group import Group
from vf.trainer.settings.config import TrainerArgs

log = logging.getLogger(__name__)

ATTEMPTS = 3  # of one rollout, before its group does without it

OnTrace = Callable[[Trace], None]


class TaskCursor:
    """Walks through the tasks, in an order that is shuffled anew for every epoch.

    Attributes:
        position: How many tasks were drawn so far; all there is to save and restore.
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = tasks
        self._seed = seed
        self.position = 0

    @property
    def first(self) -> Task:
        """The first task of the split."""
        return self._tasks[0]

    def draw(self, count: int) -> list[Task]:
        """Return the next tasks."""
        drawn = []
        for position in range(self.position, self.position + count):
            epoch, place = divmod(position, len(self._tasks))
            drawn.append(self._tasks[self._order(epoch)[place]])
        self.position += count
        return drawn

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        random.Random(derive_seed(self._seed, "epoch", epoch)).shuffle(order)
        return order


class Orchestrator:
    """Runs rollouts against a model, for training and for evaluation.

    Args:
        environment: Where the model acts.
        model: Who acts.
        tasks: The train split.
        eval_tasks: What to evaluate on.
        args: ``[trainer.args]``.
        serving: The model's server, whose outages are waited out.
    """

    def __init__(
        self,
        environment: Environment,
        model: Model,
        tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
        args: TrainerArgs,
        serving: Serving,
    ) -> None:
        self._environment = environment
        self.model = model
        self._eval_tasks = eval_tasks
        self._args = args
        self._serving = serving
        self.cursor = TaskCursor(tasks, args.seed)
        self.sampling = Sampling(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
        )

    async def collect(self, step: int, on_trace: OnTrace) -> list[Group]:
        """Run a step's rollouts.

        A rollout that fails is replaced by a fresh one of the same task. A group that ends with
        fewer than two scored rollouts stays in the result, with nothing to teach. One that the
        rubric leaves without a reward is not replaced: it was no failure, and a rubric that
        cannot score this task would be asked for ever.

        Args:
            step: Number of the step; seeds derive from it.
            on_trace: Called with every trace as it finishes, failed ones included; where the
                rubric has group rewards, with those of a group once they are scored.

        Raises:
            TrainingError: More rollouts failed than ``max_error_rate`` allows; names the cause.
        """
        args = self._args
        groups = [
            Group(task) for task in self.cursor.draw(args.batch_size // args.rollouts_per_example)
        ]
        places = asyncio.Semaphore(args.max_concurrent)
        failures: list[Trace] = []
        environment = self._environment
        in_groups = bool(environment.rubric.group_rewards)

        async def one(group: Group, index: int) -> Trace | None:
            for attempt in range(ATTEMPTS):
                seed = derive_seed(args.seed, "train", step, group.task.id, index, attempt)
                async with places:
                    trace = await self._rollout(
                        self._environment,
                        group.task,
                        self.model,
                        sampling=self.sampling,
                        seed=seed,
                    )
                trace.info["step"] = step
                if not in_groups or trace.error is not None:
                    on_trace(trace)
                if trace.error is None:
                    return trace
                group.failed.append(trace)
                failures.append(trace)
                self._check_failures(failures)
            return None

        async def whole(group: Group, runs: Sequence[asyncio.Task[Trace | None]]) -> None:
            # In the order of the seeds, not of arrival: a resumed run sums in the same order.
            traces = [trace for run in runs if (trace := await run) is not None]
            if in_groups:
                await score_group(environment.rubric, traces, environment.timeout)
                for trace in traces:
                    on_trace(trace)
            failed = [trace for trace in traces if trace.error is not None]
            group.traces = [trace for trace in traces if trace.reward is not None]
            group.unscored = [t for t in traces if t.error is None and t.reward is None]
            group.failed += failed
            failures.extend(failed)
            self._check_failures(failures)

        try:
            async with asyncio.TaskGroup() as tasks:
                for group in groups:
                    runs = [
                        tasks.create_task(one(group, i)) for i in range(args.rollouts_per_example)
                    ]
                    tasks.create_task(whole(group, runs))
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        return groups

    async def evaluate(self, on_trace: OnTrace) -> Evaluation:
        """Run one rollout of each evaluation task, always with the same seeds.

        Raises:
            TrainingError: More rollouts failed than ``max_error_rate`` allows; names the cause.
        """
        result = await evaluate(
            self._environment,
            self.model,
            tasks=self._eval_tasks,
            max_concurrent=self._args.max_concurrent,
            sampling=self.sampling,
            seed=derive_seed(self._args.seed, "eval"),
            on_trace=on_trace,
            check=False,
            run=self._rollout,
        )
        failed = [trace for trace in result.traces if trace.error is not None]
        if failed:
            self._check_failures(failed, len(result.traces))
        return result

    async def _rollout(self, *args: Any, **kwargs: Any) -> Trace:
        """Run a rollout; one that was lost because the server went down is done over."""
        while True:
            await self._serving.available()
            trace = await rollout(*args, **kwargs)
            if trace.error is None or trace.error.boundary != ServerDown.boundary:
                return trace
            log.warning("rollout of %s is done over: %s", trace.task.id, trace.error.message)

    async def try_one(self) -> Trace:
        """Run one rollout of the first train task."""
        return await rollout(
            self._environment, self.cursor.first, self.model, sampling=self.sampling
        )

    def _check_failures(self, failures: Sequence[Trace], total: int | None = None) -> None:
        total = total or self._args.batch_size
        if len(failures) <= self._args.max_error_rate * total:
            return
        errors = [trace.error for trace in failures if trace.error is not None]
        (boundary, message), count = Counter((e.boundary, e.message) for e in errors).most_common(
            1
        )[0]
        first = next(e for e in errors if e.message == message)
        raise TrainingError(
            f"{len(failures)} of {total} rollouts failed, over max_error_rate = "
            f"{self._args.max_error_rate:g}. Most often ({count}×), in the {boundary}: {message}\n"
            f"{first.traceback}"
        )
