"""What is known of a run by now, for those who draw it."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from vf.traces.trace import Trace

if TYPE_CHECKING:
    from vf.trainer.run.metrics import Metrics

KEPT_TRACES = 50  # the newest, to be browsed
KEPT_NOTES = 50  # the newest, on the screen
TIMED_STEPS = 5  # that the phases' shares are taken over


class Board:
    """What is known of a run by now.

    The trainer's thread writes, another one draws. Where more than one value belongs together,
    they are one tuple or stand behind the lock.

    Attributes:
        step: The last finished step.
        first_step: The step after which this process began.
        max_steps: The step after which the run ends.
        phase: What the trainer does, and since when (monotonic seconds).
        rollouts: How many are done, of how many, and whether they are an evaluation's.
        rewards: Step and mean reward, a pair for every step.
        held_out: Step and mean held-out reward, a pair for every evaluation.
        metrics: Those of the last step.
    """

    def __init__(self) -> None:
        self.step = self.first_step = 0
        self.max_steps = 1
        self.phase = ("start", time.monotonic())
        self.rollouts = (0, 0, False)
        self.rewards: list[tuple[float, float]] = []
        self.held_out: list[tuple[float, float]] = []
        self.metrics: Metrics = {}
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._times: deque[dict[str, float]] = deque(maxlen=TIMED_STEPS)
        self._notes: deque[str] = deque(maxlen=KEPT_NOTES)
        self._traces: deque[tuple[int, Trace]] = deque(maxlen=KEPT_TRACES)
        self._count = 0

    def start(self, step: int, max_steps: int) -> None:
        """Begin after a step."""
        self.step = self.first_step = step
        self.max_steps = max_steps
        self._started = time.monotonic()
        self.enter("start")

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = (phase, time.monotonic())

    def finish(self, metrics: Metrics) -> None:
        """Take in a finished step."""
        self.metrics, self.step = metrics, int(metrics["step"])
        if "reward/mean" in metrics:
            self.rewards.append((self.step, metrics["reward/mean"]))
        times = {
            name.removeprefix("time/"): seconds
            for name, seconds in metrics.items()
            if name.startswith("time/") and name != "time/total"
        }
        with self._lock:
            self._times.append(times)

    def evaluated(self, step: int, metrics: Metrics) -> None:
        """Take in a held-out evaluation."""
        self.held_out.append((step, metrics["eval/reward/mean"]))

    def note(self, text: str) -> None:
        """Keep a note. Any thread may call it."""
        with self._lock:
            self._notes.append(text)

    def trace(self, trace: Trace) -> None:
        """Keep a rollout, unless it is there already. Any thread may call it."""
        with self._lock:
            if all(kept is not trace for _, kept in self._traces):
                self._count += 1
                self._traces.append((self._count, trace))

    @property
    def notes(self) -> list[str]:
        """The newest notes, the oldest of them first."""
        with self._lock:
            return list(self._notes)

    @property
    def traces(self) -> list[tuple[int, Trace]]:
        """The newest rollouts with their numbers, which count from 1; the oldest first."""
        with self._lock:
            return list(self._traces)

    @property
    def times(self) -> tuple[int, dict[str, float]]:
        """How many of the last steps were timed, and seconds of a step by phase, on average."""
        with self._lock:
            steps = list(self._times)
        names = dict.fromkeys(name for step in steps for name in step)
        return len(steps), {n: sum(s.get(n, 0.0) for s in steps) / len(steps) for n in names}

    @property
    def seconds(self) -> float:
        """Since this process began to train."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """What the remaining steps will take at the pace so far; None before the first."""
        done = self.step - self.first_step
        return self.seconds / done * max(0, self.max_steps - self.step) if done else None
