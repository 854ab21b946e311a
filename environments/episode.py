"""One rollout while it runs: what it consists of, and what it does now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vf.environments.environment import Environment
from vf.inference.model import Model, Sampling
from vf.traces.task import Task
from vf.traces.trace import Fork, Trace


class Activity:
    """What one rollout does now; it may be read from any thread.

    Attributes:
        task: The problem.
        doing: One of ``starting``, ``image`` (it waits until its sandbox's is there), ``place`` (it
            waits for one), ``server`` (it waits for one that is down), ``worker`` (it waits for a
            process to run in), ``reset``, ``model``, ``step``, ``agent`` (one that works by
            itself), ``score``, ``close``, ``release``.
        since: When that began, in seconds of ``time.monotonic``.
        turn: Turns that the model has answered.
    """

    __slots__ = ("_on_change", "doing", "since", "task", "turn")

    def __init__(self, task: Task, on_change: Callable[[], None] | None = None) -> None:
        self.task = task
        self.doing = "starting"
        self.since = time.monotonic()
        self.turn = 0
        self._on_change = on_change

    def enter(self, doing: str) -> None:
        """Begin something else."""
        self.doing = doing
        self.since = time.monotonic()
        if self._on_change is not None:
            self._on_change()


@dataclass(frozen=True, slots=True)
class Episode:
    """What an episode is played with, in turns or by an agent.

    Attributes:
        environment: The rollout's own copy.
        task: The problem.
        model: Who answers.
        sampling: How, except for the seed.
        seed: Of the rollout; every turn derives its own from it.
        trace: Is filled.
        activity: Is kept up to date.
        first_turn: Where it is played within another: how many turns came before.
        fork: Where it is played within another: why its conversation begins.
    """

    environment: Environment
    task: Task
    model: Model
    sampling: Sampling
    seed: int
    trace: Trace
    activity: Activity
    first_turn: int = 0
    fork: Fork | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[], float]]:
        """Time a phase, and remember it for the message of a deadline that passes in it.

        Yields:
            A function that returns the seconds so far.
        """
        self.activity.enter(name)
        started = time.perf_counter()
        try:
            yield lambda: time.perf_counter() - started
        finally:
            spent = time.perf_counter() - started
            self.trace.timing[name] = self.trace.timing.get(name, 0.0) + spent
