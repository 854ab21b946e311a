"""What the trainer tells those who watch."""

from __future__ import annotations

from typing import Protocol

from vf.traces.trace import Trace
from vf.trainer.run.metrics import Metrics


class Display(Protocol):
    """What the trainer tells.

    All but :meth:`trace` are called from the trainer's thread. None may raise or take long.
    """

    def waiting(self, text: str) -> None:
        """Something is being waited for; called several times a second, before the start."""

    def start(self, step: int, max_steps: int) -> None:
        """Training begins after ``step``, and goes on to ``max_steps``."""

    def phase(self, name: str) -> None:
        """Tell what the trainer does from now on: generate, train, publish, evaluate or save."""

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        """So many rollouts of this step, or of this evaluation, are done."""

    def trace(self, trace: Trace) -> None:
        """A training rollout finished. Called from another thread than the rest."""

    def step(self, metrics: Metrics) -> None:
        """A step is done; ``time/NAME`` are seconds, and sum to ``time/total``."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """A held-out evaluation is done; ``eval/reward/mean`` is in [0, 1]."""

    def sample(self, trace: Trace) -> None:
        """One rollout of this step, for the reader; not of every step."""

    def note(self, text: str) -> None:
        """Something that the user should know, and find again after the run."""

    def stop(self) -> None:
        """The run is over, well or badly. Called more than once."""


class SilentDisplay:
    """Shows nothing."""

    def waiting(self, text: str) -> None:
        """Ignore."""

    def start(self, step: int, max_steps: int) -> None:
        """Ignore."""

    def phase(self, name: str) -> None:
        """Ignore."""

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        """Ignore."""

    def trace(self, trace: Trace) -> None:
        """Ignore."""

    def step(self, metrics: Metrics) -> None:
        """Ignore."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Ignore."""

    def sample(self, trace: Trace) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def stop(self) -> None:
        """Ignore."""
