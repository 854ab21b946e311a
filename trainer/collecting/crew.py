"""Runs rollouts one by one, and knows at any moment what each of them does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from vf.environments.environment import Environment
from vf.environments.runner import Activity, rollout
from vf.inference.model import Model, Sampling
from vf.inference.serving import Serving
from vf.runtime.errors import ServerDown
from vf.traces.task import Task
from vf.traces.trace import Trace

log = logging.getLogger(__name__)

EVALUATION = 0  # the step that evaluation rollouts are filed under


class Crew:
    """Runs rollouts.

    Args:
        environment: Where the model acts.
        model: Who acts.
        sampling: How.
        serving: The model's server, whose outages are waited out.
        beat: Called whenever a rollout gets on.
    """

    def __init__(
        self,
        environment: Environment,
        model: Model,
        sampling: Sampling,
        serving: Serving,
        beat: Callable[[], None],
    ) -> None:
        self.environment = environment
        self.model = model
        self.sampling = sampling
        self._serving = serving
        self._beat = beat
        self._live: dict[Activity, int] = {}

    async def run(
        self, task: Task, seed: int, step: int, place: AbstractAsyncContextManager[Any]
    ) -> Trace:
        """Run a rollout once it has its place; one that a dying server ended is done over.

        Args:
            task: The problem.
            seed: Of the rollout.
            step: Whose rollout it is, or ``EVALUATION``.
            place: Held while it runs.
        """
        activity = self.begin(task, step, "place")
        try:
            async with place:
                while True:
                    activity.enter("server")
                    await self._serving.available()
                    trace = await rollout(
                        self.environment,
                        task,
                        self.model,
                        sampling=self.sampling,
                        seed=seed,
                        activity=activity,
                    )
                    if trace.error is None or trace.error.boundary != ServerDown.boundary:
                        return trace
                    log.warning("rollout of %s is done over: %s", task.id, trace.error.message)
        finally:
            self.end(activity)

    def begin(self, task: Task, step: int, doing: str) -> Activity:
        """Note that something is done for a task of a step, until :meth:`end`."""
        activity = Activity(task, self._beat)
        activity.enter(doing)
        self._live[activity] = step
        return activity

    def end(self, activity: Activity) -> None:
        """Note that it is done."""
        del self._live[activity]
        self._beat()

    def activities(self, step: int | None = None) -> list[Activity]:
        """Return what rollouts do now, of one step or of all. For any thread."""
        return [each for each, of in self._live.copy().items() if step in (None, of)]
