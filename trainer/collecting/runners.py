"""Where rollouts run: the interface of this process and of worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from vf.environments.environment import Environment
from vf.environments.episode import Activity
from vf.environments.runner import rollout
from vf.environments.sandboxes import prefetch
from vf.inference.model import Model, Sampling
from vf.rubrics.group import score_group
from vf.runtime.calling import call
from vf.traces.task import Task
from vf.traces.trace import Origin, Trace


class Ended(NamedTuple):
    """A rollout that has ended, and its line of JSON where a worker process has encoded it."""

    trace: Trace
    line: bytes | None = None


class Runner(Protocol):
    """Runs rollouts. Its coroutines are for one event loop."""

    async def start(self) -> None:
        """Begin to get ready, without waiting for it.

        Raises:
            ConfigError: If something that the environment needs is missing.
        """
        ...

    def check(self) -> None:
        """Raise what keeps rollouts from running. For any thread.

        Raises:
            TrainingError: If worker processes end again and again.
            ConfigError: If the environment cannot be made in a worker process.
        """
        ...

    async def prefetch(self, environment: str, tasks: Sequence[Task]) -> None:
        """Have the images of tasks built or pulled, and return when all are there or have failed.

        Args:
            environment: The name of the tasks' environment in the run.
            tasks: The tasks.

        Raises:
            ConfigError: If a sandbox cannot be made as its task has it.
        """
        ...

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
        """Run one rollout; see :func:`~vf.environments.runner.rollout`.

        Args:
            environment: The name of the task's environment in the run.
            task: The problem.
            sampling: The sampling settings of each turn.
            seed: Seed of the episode.
            origin: The rollout's step, group and number in training; None elsewhere.
            activity: Kept up to date with what it does.
        """
        ...

    async def score_group(self, environment: str, traces: Sequence[Trace]) -> list[Ended]:
        """Let group rewards score the rollouts of one task, in place, and return these."""
        ...

    async def stop(self) -> None:
        """End what is left. Safe to call twice."""
        ...


class InProcess:
    """Runs rollouts in this process.

    Args:
        environments: Each environment with its model, by its name in the run.
    """

    def __init__(self, environments: Mapping[str, tuple[Environment, Model]]) -> None:
        self.environments = environments

    async def start(self) -> None:
        """Start what the environments' episodes share."""
        for environment, _ in self.environments.values():
            await call(environment.start)

    def check(self) -> None:
        """Nothing can be wrong: what fails, fails in a rollout."""

    async def prefetch(self, environment: str, tasks: Sequence[Task]) -> None:
        """See :class:`Runner`."""
        await prefetch(self.environments[environment][0], tasks)

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
        """See :class:`Runner`."""
        prototype, model = self.environments[environment]
        trace = await rollout(
            prototype, task, model, sampling=sampling, seed=seed, activity=activity
        )
        trace.origin = origin
        return Ended(trace)

    async def score_group(self, environment: str, traces: Sequence[Trace]) -> list[Ended]:
        """See :class:`Runner`."""
        scorer, _ = self.environments[environment]
        await score_group(scorer.rubric, traces, scorer.timeout)
        return [Ended(trace) for trace in traces]

    async def stop(self) -> None:
        """Nothing is left: rollouts end as they are cancelled."""
