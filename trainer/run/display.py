"""How the trainer reports progress."""

from __future__ import annotations

from vf.traces.trace import Trace
from vf.trainer.run.metrics import Metrics


class Display:
    """Receives the progress of a run. This one shows nothing; subclass it to show something.

    :meth:`rollouts` and :meth:`note` may be called from any thread, the others from
    the trainer's. None may raise or take long.
    """

    def waiting(self, text: str) -> None:
        """The run waits for something before it starts; called several times a second."""

    def start(self, step: int, max_steps: int) -> None:
        """Training starts after ``step`` and runs to ``max_steps``."""

    def phase(self, name: str) -> None:
        """The trainer begins a phase: generate, train, publish, evaluate or save."""

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        """``done`` of ``total`` rollouts of this step, or of an evaluation, are done."""

    def step(self, metrics: Metrics) -> None:
        """A step is done; ``time/NAME`` are seconds that sum to ``time/total``."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """A held-out evaluation is done; ``eval/reward/mean`` is in [0, 1]."""

    def sample(self, trace: Trace) -> None:
        """A rollout of this step as a sample for the user, every ``sample_steps`` steps."""

    def note(self, text: str) -> None:
        """Something that the user should know, and find again after the run."""

    def stop(self) -> None:
        """The run is over, finished or failed. Called more than once."""
