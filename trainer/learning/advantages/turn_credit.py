"""Which turn a reward belongs to, and what overlong turns cost.

With ``credit = "turn"`` a rollout's reward R is spread over its turns without changing its sum:
each turn gets the environment's step reward, less what penalties cost there
(``Score.turn_costs``), and the last turn gets the rest of R. Turn k is then worth its discounted
return G_k = Σ_{u ≥ k} γ^{u − k} ρ_u.
"""

from __future__ import annotations

from collections.abc import Sequence

from vf.traces.trace import Trace
from vf.trainer.learning.advantages.group_advantages import AdvantageFn, group_advantages
from vf.trainer.settings.loss_args import AdvantageKind


def was_cut(trace: Trace) -> bool:
    """Return whether a limit ended the rollout, or cut one of its answers at max_tokens."""
    return trace.truncated or any(turn.finish_reason == "length" for turn in trace.turns)


def overlong_costs(trace: Trace, max_tokens: int, buffer: int, penalty: float) -> list[float]:
    """Return what each turn costs for coming close to the length limit.

    The longest turn, of y tokens, costs penalty · min(1, max(0, y − (L_max − L_buffer)) /
    L_buffer), and the others nothing: DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13),
    applied to the answer that is nearest to being cut.

    Args:
        trace: The rollout.
        max_tokens: L_max, tokens in one turn.
        buffer: L_buffer, tokens.
        penalty: Reward that a turn of ``max_tokens`` costs.

    Returns:
        One cost per turn, none negative.
    """
    lengths = [turn.completion_tokens for turn in trace.turns]
    costs = [0.0] * len(lengths)
    if lengths:
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        over = (lengths[longest] - (max_tokens - buffer)) / buffer
        costs[longest] = penalty * min(1.0, max(0.0, over))
    return costs


def turn_rewards(trace: Trace) -> list[float]:
    """Return the reward of each turn; they sum to the rollout's.

    Args:
        trace: A rollout with a reward.

    Raises:
        ValueError: If the rollout has no reward.
    """
    if trace.score is None or trace.score.reward is None:
        raise ValueError(f"the rollout of task {trace.task.id!r} has no reward")
    placed = [0.0] * max(1, len(trace.turns))
    for turn, value in enumerate(trace.step_rewards[: len(placed)]):
        placed[turn] += value
    for costs in trace.score.turn_costs.values():
        for turn, cost in enumerate(costs):
            placed[turn] -= cost
    placed[-1] += trace.score.reward - sum(placed)
    return placed


def returns(rewards: Sequence[float], discount: float) -> list[float]:
    """Return G_k = Σ_{u ≥ k} γ^{u − k} ρ_u of every turn k."""
    totals: list[float] = []
    ahead = 0.0
    for reward in reversed(rewards):
        ahead = reward + discount * ahead
        totals.append(ahead)
    return totals[::-1]


def turn_advantages(
    group: Sequence[Sequence[float]], kind: AdvantageKind | AdvantageFn = "mean"
) -> list[list[float]]:
    """Return the advantage of each turn of each rollout of a group.

    At turn k a rollout's return is compared with the others' at turn k, or at their last turn if
    they had fewer. So where nothing is placed on turns and γ = 1, every turn has the advantage of
    its rollout.

    Args:
        group: The returns of each rollout, at least one each.
        kind: The comparison; see
            :func:`~vf.trainer.learning.advantages.group_advantages.group_advantages`.
    """
    most = max(map(len, group))
    columns = [
        group_advantages([rollout[min(turn, len(rollout) - 1)] for rollout in group], kind)
        for turn in range(most)
    ]
    return [
        [columns[turn][index] for turn in range(len(rollout))]
        for index, rollout in enumerate(group)
    ]
