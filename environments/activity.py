"""What a rollout does at the moment, for whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Callable

from vf.traces.task import Task


class Activity:
    """What one rollout does now; it may be read from any thread.

    Attributes:
        task: The problem.
        doing: One of ``starting``, ``place`` (it waits for one), ``server`` (it waits for one that
            is down), ``reset``, ``model``, ``step``, ``score``, ``close``, ``release``.
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
