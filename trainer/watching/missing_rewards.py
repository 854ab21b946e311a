"""Whether rollouts go without a reward in cases where they would have failed.

A rollout that fails in the machinery, or that the rubric leaves unscored, is a *void*: it is in no
mean, and nothing is learned from it. The mean of the others is that of all only if voids say
nothing about success (data "missing completely at random": Rubin 1976, Biometrika 63, 581). Where
a model can bring a void about, it may do so instead of failing.

So within each step, the share of voids of a group is held against how its scored rollouts did. The
steps' covariances are added up, over the root of the sum of their variances under permutation: the
test of Mantel (1963, J. Am. Stat. Assoc. 58, 690), which extends that of Mantel and Haenszel. Steps
are its strata, so neither an outage that hits one step nor a reward that rises over the run counts.
Groups are the units, since what hits one rollout of a task often hits the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from vf.trainer.run.group import Group

LEAST = 10  # groups with a void; the sum of fewer is not nearly normal


@dataclass(frozen=True, slots=True)
class StepVoids:
    """The voids of one step.

    Attributes:
        attempts: Rollouts that ended, voids included.
        tasks: Voids by task; those without are left out.
        reward: Mean of the scored rollouts, or None.
        covariance: Sum over the groups of (share of voids − its mean) · (mean − outcome).
        variance: The variance of that sum, if the outcomes were permuted among the groups.
    """

    attempts: int
    tasks: dict[str, int] = field(default_factory=dict)
    reward: float | None = None
    covariance: float = 0.0
    variance: float = 0.0

    @property
    def missing(self) -> int:
        """Number of rollouts without a reward."""
        return sum(self.tasks.values())

    @property
    def share(self) -> float:
        """Voids among the attempts."""
        return self.missing / self.attempts if self.attempts else 0.0

    @staticmethod
    def of(groups: Sequence[Group]) -> StepVoids:
        """Count a step's.

        A group without any score counts as one that went as badly as can be, if a rollout of it
        failed; if the rubric left all of them unscored, it is left out.
        """
        tasks: Counter[str] = Counter()
        attempts, shares, outcomes = 0, [], []
        for group in groups:
            missing = len(group.failed) + len(group.unscored)
            ended = missing + len(group.traces)
            attempts += ended
            if missing:
                tasks[group.task.id] += missing
            if group.traces or group.failed:
                shares.append(missing / ended)
                outcomes.append(fmean(group.outcomes) if group.traces else 0.0)
        rewards = [reward for group in groups for reward in group.rewards]
        reward = fmean(rewards) if rewards else None
        if len(shares) < 2:
            return StepVoids(attempts, dict(tasks), reward)
        x = [share - fmean(shares) for share in shares]
        y = [fmean(outcomes) - outcome for outcome in outcomes]
        covariance = math.fsum(a * b for a, b in zip(x, y, strict=True))
        spread = math.fsum(a * a for a in x) * math.fsum(b * b for b in y)
        return StepVoids(attempts, dict(tasks), reward, covariance, spread / (len(x) - 1))


def association(steps: Iterable[StepVoids]) -> float:
    """Return by how many standard errors voids are more frequent in groups that went worse.

    Positive if they are, negative if they are rarer; 0 while there are too few to tell.
    """
    steps = [*steps]
    variance = math.fsum(step.variance for step in steps)
    if sum(len(step.tasks) for step in steps) < LEAST or variance <= 0.0:
        return 0.0
    return math.fsum(step.covariance for step in steps) / math.sqrt(variance)


def worst_tasks(steps: Iterable[StepVoids]) -> str:
    """Return the three tasks with the most voids and their number, in words."""
    total: Counter[str] = Counter()
    for step in steps:
        total.update(step.tasks)
    return ", ".join(f"{task!r} ({number})" for task, number in total.most_common(3))


def share_of(steps: Sequence[StepVoids]) -> float:
    """Return the share of voids among all attempts."""
    attempts = sum(step.attempts for step in steps)
    return sum(step.missing for step in steps) / attempts if attempts else 0.0
