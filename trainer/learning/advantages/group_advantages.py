"""Advantages: how much better a rollout, or a turn of it, was than the others of its task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from vf.runtime.errors import ConfigError
from vf.trainer.run.group import UNIFORM
from vf.trainer.settings.loss_args import AdvantageKind

# A user's function: from the rewards of a group of n, float64 [n], to n advantages.
AdvantageFn = Callable[[torch.Tensor], Sequence[float] | torch.Tensor]


def group_advantages(
    rewards: Sequence[float], kind: AdvantageKind | AdvantageFn = "mean"
) -> list[float]:
    """Return each rollout's advantage within its group of n.

    Args:
        rewards: Rewards of the rollouts of one task.
        kind: ``mean``: rᵢ − mean(r) (Dr. GRPO, arXiv:2503.20783, eq. 3, without its constant).
            ``mean_std``: (rᵢ − mean(r)) / (std(r) + 1e-6), std over n (GRPO, arXiv:2402.03300,
            section 4.1.2).
            ``rloo``: rᵢ less the mean of the others' rewards, the leave-one-out baseline (RLOO,
            arXiv:2402.14740), which is n / (n − 1) times ``mean``.
            ``max_rl``: (rᵢ − mean(r)) / mean(r) (MaxRL, arXiv:2602.02710): rare successes weigh
            more; 0 where the mean is 0. A function: what it makes of them.

    Returns:
        One advantage per reward; they sum to 0, unless a function is given.

    Raises:
        ValueError: If the group is empty, or ``max_rl`` is given a negative reward.
        ConfigError: If a function did not return one finite number for each reward.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward")
    if callable(kind):
        return _by_function(rewards, kind)
    count = len(rewards)
    mean = math.fsum(rewards) / count
    centred = [reward - mean for reward in rewards]
    match kind:
        case "mean":
            return centred
        case "mean_std":
            deviation = math.sqrt(math.fsum(value * value for value in centred) / count)
            return [value / (deviation + 1e-6) for value in centred]
        case "rloo":
            return [value * count / max(1, count - 1) for value in centred]
        case "max_rl":
            if min(rewards) < 0.0:
                raise ValueError("max_rl takes no negative reward")
            return [value / mean for value in centred] if mean > UNIFORM else [0.0] * count


def _by_function(rewards: Sequence[float], function: AdvantageFn) -> list[float]:
    returned = function(torch.tensor(rewards, dtype=torch.float64))
    try:
        advantages = [float(value) for value in returned]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the advantages {_name(function)} returned {type(returned).__name__}, not a number "
            f"for each of {len(rewards)} rewards: {error}"
        ) from error
    if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
        raise ConfigError(
            f"the advantages {_name(function)} returned {advantages} for the rewards "
            f"{list(rewards)}: it must be a finite number for each"
        )
    return advantages


def _name(function: AdvantageFn) -> str:
    return repr(getattr(function, "__qualname__", function))
