"""Advantages: how much better a rollout was than the others of its task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

UNIFORM = 1e-8  # a group whose rewards differ by less teaches nothing


def is_uniform(rewards: Sequence[float]) -> bool:
    """Return whether the rewards of a group have no spread."""
    return max(rewards) - min(rewards) < UNIFORM


def group_advantages(
    rewards: Sequence[float], kind: Literal["mean", "mean_std"] = "mean"
) -> list[float]:
    """Return each rollout's advantage within its group.

    Args:
        rewards: Rewards of the rollouts of one task.
        kind: ``mean``: rᵢ − mean(r) (Dr. GRPO, arXiv:2503.20783, eq. 3, without its constant).
            ``mean_std``: (rᵢ − mean(r)) / (std(r) + 1e-6), std over n (GRPO, arXiv:2402.03300,
            section 4.1.2).

    Returns:
        One advantage per reward; they sum to 0.

    Raises:
        ValueError: The group is empty.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward")
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if kind == "mean":
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [value / (deviation + 1e-6) for value in centred]
