"""The rollouts of one task in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vf.traces.task import Task
from vf.traces.trace import NOT_SAMPLED, Trace

UNIFORM = 1e-8  # a group whose rewards differ by less has no learning signal


@dataclass(slots=True)
class Group:
    """The rollouts of one task in one step.

    Attributes:
        task: The problem.
        traces: The scored rollouts; advantages are relative to these.
        unscored: Rollouts that the rubric left without a reward; nothing is learned from them.
        failed: Rollouts that an infrastructure error left without a reward.
        stopped: How many rollouts were stopped because the others were enough.
        number: The group's place in the sequence of all draws of tasks.
        epoch: How often all tasks had had their turn before.
        min_size: Fewest scored rollouts that it can teach with.
        environment: The name of its environment in the run.
    """

    task: Task
    traces: list[Trace] = field(default_factory=list)
    unscored: list[Trace] = field(default_factory=list)
    failed: list[Trace] = field(default_factory=list)
    stopped: int = 0
    number: int = 0
    epoch: int = 0
    min_size: int = 2
    environment: str = ""

    @property
    def rewards(self) -> list[float]:
        """The rewards of the scored rollouts."""
        return [trace.reward for trace in self.traces if trace.reward is not None]

    @property
    def outcomes(self) -> list[float]:
        """The outcomes of the scored rollouts, or their rewards where a rubric has no outcome."""
        outcomes = [trace.score.outcome for trace in self.traces if trace.score is not None]
        scored = [outcome for outcome in outcomes if outcome is not None]
        return scored if len(scored) == len(self.traces) else self.rewards

    @property
    def uniform(self) -> bool:
        """Whether the group has no learning signal because its rewards have no spread."""
        if len(self.rewards) < self.min_size:
            return True
        return all(map(is_uniform, [*self.role_rewards.values()] or [self.rewards]))

    @property
    def role_rewards(self) -> dict[str, list[float]]:
        """The rewards of each trained role in the scored rollouts; empty without roles."""
        by_role: dict[str, list[float]] = {}
        for trace in self.traces:
            for name, role in trace.roles.items():
                if role.trained:
                    by_role.setdefault(name, []).append(role.reward)
        return by_role

    @property
    def loss_tokens(self) -> int:
        """Tokens of its scored rollouts that carry loss, or would if the rewards differed."""
        return sum(sum(branch.loss_mask) for trace in self.traces for branch in trace.branches)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest weights that any of its tokens was sampled with."""
        versions = {
            version
            for trace in self.traces
            for branch in trace.branches
            for version in set(branch.weight_version)
        }
        return min(versions - {NOT_SAMPLED}, default=None)

    def take(self, traces: list[Trace]) -> None:
        """Sort finished rollouts into those that teach and those that do not."""
        self.traces = [trace for trace in traces if trace.reward is not None]
        self.unscored = [t for t in traces if t.error is None and t.reward is None]
        self.failed += [trace for trace in traces if trace.error is not None]


def is_uniform(rewards: Sequence[float]) -> bool:
    """Return whether the rewards of a group have no spread."""
    return max(rewards) - min(rewards) < UNIFORM
