"""Built-in group rewards: each compares the rollouts of one task, and 1 is the best.

In a :class:`~vf.rubrics.rubric.Rubric` what is missing to 1 counts as a penalty, so they order
successes and cannot lift a failure. In a :class:`~vf.rubrics.weighted_sum.WeightedSum` they are
terms of the sum, so a preference can be the whole reward.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence

from vf.rubrics.group import GroupReward
from vf.rubrics.scorers import Part, checked, name_of
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace

Compare = Callable[[Trace, Trace], float | Awaitable[float]]
_WORD = re.compile(r"\w+|[^\w\s]")


def shorter(weight: float = 0.1) -> GroupReward:
    """Rewards fewer sampled tokens than the rest of the group.

    Range: [0, 1].

    Formula: λ + 0.5 for a success (outcome 1), min(0, λ) + 0.5 else, with λ = 0.5 − (len − min len)
    / (max len − min len) over the group, and 0 if all have the same length. The shift by 0.5 brings
    it into [0, 1] and changes no differences.

    Source: the length reward of Kimi k1.5 (arXiv:2501.12599), section 2.3.3.

    Known ways to game it: answers without reasoning. The source warms it up, because it slows
        learning at first: add it once the outcome is learned.

    Args:
        weight: Its share in the rubric.
    """

    def shorter(traces: Sequence[Trace]) -> list[float]:
        lengths = [trace.completion_tokens for trace in traces]
        least, spread = min(lengths), max(lengths) - min(lengths)
        values = []
        for trace, length in zip(traces, lengths, strict=True):
            value = 0.5 - (length - least) / spread if spread else 0.0
            solved = trace.score is not None and trace.score.outcome == 1.0
            values.append((value if solved else min(0.0, value)) + 0.5)
        return values

    return GroupReward(shorter, weight)


def pairwise(compare: Compare, weight: float = 0.1, *, both_orders: bool = True) -> GroupReward:
    """How often a rollout is preferred to the others of its group.

    Range: [0, 1]; the mean over the group is 0.5 where preferences are consistent.

    Formula: mean over the others j of compare(i, j), averaged with 1 − compare(j, i) unless
    ``both_orders`` is False; then each pair is compared once, in the group's order.

    Source: the win rate, as in pairwise evaluation by judges (Zheng et al., arXiv:2306.05685),
    whose swap of positions ``both_orders`` is.

    Known ways to game it: those of ``compare``; a judge prefers length, lists and flattery.

    Args:
        compare: Says in [0, 1] how much better the first trace is than the second: 1 better, 0
            worse, 0.5 even. Sync or async; all comparisons run concurrently.
        weight: Its share in the rubric.
        both_orders: Compare each pair in both orders, against a preference for the first.

    Raises:
        ConfigError: ``compare`` is not a function.
        RubricError: (when scoring) ``compare`` failed, or returned something out of range.
    """
    if not callable(compare):
        raise ConfigError(f"pairwise: {compare!r} is not a function of two traces")
    part = Part(f"pairwise: {name_of(compare)}", lambda trace: None)

    async def pairwise(traces: Sequence[Trace]) -> list[float]:
        async def wins(i: int, j: int) -> float:
            value = checked(await call(compare, traces[i], traces[j]), part)
            return 0.5 if value is None else value

        count = len(traces)
        pairs = list(itertools.combinations(range(count), 2))
        if both_orders:
            pairs += [(j, i) for i, j in pairs]
        totals = [0.0] * count
        try:
            async with asyncio.TaskGroup() as group:  # one that fails takes the others along
                games_won = [group.create_task(wins(i, j)) for i, j in pairs]
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        for (i, j), won in zip(pairs, games_won, strict=True):
            totals[i] += won.result()
            totals[j] += 1.0 - won.result()
        games = (count - 1) * (2 if both_orders else 1)
        return [min(1.0, max(0.0, total / games)) for total in totals]

    return GroupReward(pairwise, weight)


def best_of(weight: float = 0.1) -> GroupReward:
    """Whether a rollout is the best of its group; several may be.

    Range: 0 or 1.

    Formula: 1 if the reward before group rewards equals the group's highest, else 0.

    Source: our own; the target of best-of-n sampling, which uses one answer of n.

    Known ways to game it: none of its own. It makes rewards sparser, so groups with one lucky
        rollout dominate.

    Args:
        weight: Its share in the rubric.
    """

    def best_of(traces: Sequence[Trace]) -> list[float]:
        rewards = [trace.reward if trace.reward is not None else -1.0 for trace in traces]
        return [float(reward == max(rewards)) for reward in rewards]

    return GroupReward(best_of, weight)


def diversity(weight: float = 0.1, n: int = 2) -> GroupReward:
    """How different a rollout's last message is from the others of its group.

    Range: [0, 1]; 0 where all are the same.

    Formula: 1 − mean over the others of |A ∩ B| / |A ∪ B| (Jaccard), A and B being the sets of
    word n-grams of the last messages; two without any n-gram count as the same.

    Source: our own; the complement of the mean Jaccard similarity.

    Known ways to game it: filler that differs. In a Rubric it only pays with a success, and at
    most its weight; keep that small.

    Args:
        weight: Its share in the rubric.
        n: Words in an n-gram; shorter messages are one n-gram.

    Raises:
        ConfigError: ``n`` is below 1.
    """
    if n < 1:
        raise ConfigError(f"diversity: n must be at least 1, got {n}")

    def diversity(traces: Sequence[Trace]) -> list[float]:
        sets = [_grams(trace.reply, n) for trace in traces]
        others = len(sets) - 1
        return [
            1.0 - sum(_jaccard(mine, sets[j]) for j in range(len(sets)) if j != i) / others
            for i, mine in enumerate(sets)
        ]

    return GroupReward(diversity, weight)


def _grams(text: str, n: int) -> set[tuple[str, ...]]:
    words = _WORD.findall(text)
    grams = set(zip(*(words[start:] for start in range(n)), strict=False))
    return grams or ({tuple(words)} if words else set())


def _jaccard(a: set[tuple[str, ...]], b: set[tuple[str, ...]]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0
