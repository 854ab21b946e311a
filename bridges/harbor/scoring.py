"""The rubric of task folders: the tests' verdict is the outcome, their other keys are metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from vf.rubrics.rubric import Rubric
from vf.traces.trace import Score, Trace

INFO = "harbor"  # the key of Trace.info under which all of this is recorded


def task_reward(trace: Trace) -> float:
    """What the task's tests said, in [0, 1].

    Range: [0, 1].

    Formula: the reward that the tests wrote, or that follows from what pytest printed; what lies
    beyond counts as its end. Of several steps their mean, or the last one's.

    Source: the format's ``/logs/verifier/reward.txt`` and ``reward.json``.

    Known ways to game it: those of the task's tests. Tests that run the agent's programs run them
    beside themselves; a task that has to do that safely has a container for its tests.
    """
    return float(trace.info.get(INFO, {}).get("reward", 0.0))


def verified(trace: Trace) -> float:
    """1 if the tests of every part that was begun said something, 0 otherwise."""
    info = trace.info.get(INFO, {})
    records = [*info.get("steps", {}).values()] or [info]
    return float(all(record.get("rewards") for record in records))


class FolderRubric(Rubric):
    """Scores a trace by its task's tests, which are run first where that has not been done.

    However an episode ends, by a limit too, what was done by then is verified.

    Args:
        verify: Verifies the episode, and records the result in the trace.
    """

    def __init__(self, verify: Callable[[Trace], Awaitable[None]] | None = None) -> None:
        super().__init__(outcome=task_reward, metrics=[verified])
        self._verify = verify

    async def score(self, trace: Trace) -> Score:
        """Verify, and score.

        Raises:
            InfrastructureError: If a container is lost.
        """
        if self._verify is not None:
            await self._verify(trace)
        score = await super().score(trace)
        for name, value in trace.info.get(INFO, {}).get("keys", {}).items():
            score.metrics.setdefault(name, value)
        return score
