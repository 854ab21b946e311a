"""The rollouts of one task in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vf.traces.task import Task
from vf.traces.trace import Trace
from vf.trainer.learning.advantages import is_uniform


@dataclass(slots=True)
class Group:
    """The rollouts of one task in one step.

    Attributes:
        task: The problem.
        traces: The scored rollouts; advantages are relative to these.
        unscored: Rollouts that the rubric left without a reward; nothing is learned from them.
        failed: Rollouts that an infrastructure error left without a reward.
    """

    task: Task
    traces: list[Trace] = field(default_factory=list)
    unscored: list[Trace] = field(default_factory=list)
    failed: list[Trace] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        """The rewards of the scored rollouts."""
        return [trace.reward for trace in self.traces if trace.reward is not None]

    @property
    def uniform(self) -> bool:
        """Whether the group teaches nothing because its rewards have no spread."""
        return len(self.rewards) < 2 or is_uniform(self.rewards)
