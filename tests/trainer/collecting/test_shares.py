"""Shares: exact over time, near in every step, and by tokens."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf.trainer.collecting.mixture import RolloutShares, TokenShares, apportion, interleave


def by_hand(weights: list[int], total: int) -> list[int]:
    """The largest remainder in exact fractions; of equal remainders the first."""
    quotas = [Fraction(weight * total, sum(weights)) for weight in weights]
    counts = [math.floor(quota) for quota in quotas]
    order = sorted(range(len(weights)), key=lambda i: (counts[i] - quotas[i], i))
    for place in order[: total - sum(counts)]:
        counts[place] += 1
    return counts


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=6), total=st.integers(1, 64))
def test_a_first_step_has_the_largest_remainders(weights: list[int], total: int) -> None:
    assert RolloutShares([float(each) for each in weights]).counts(total) == by_hand(weights, total)


@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    total=st.integers(1, 16),
    steps=st.integers(1, 60),
)
def test_what_a_step_cannot_give_the_next_ones_do(
    weights: list[int], total: int, steps: int
) -> None:
    shares, given_out = RolloutShares([float(each) for each in weights]), Counter[int]()
    for _ in range(steps):
        counts = shares.counts(total)
        assert sum(counts) == total
        assert min(counts) >= 0
        given_out.update(dict(enumerate(counts)))
    for place, weight in enumerate(weights):
        due = weight * total * steps / sum(weights)
        assert abs(given_out[place] - due) < 2.0
    if total * min(weights) % sum(weights) == 0 and len(set(weights)) == 1:
        assert len({given_out[place] for place in range(len(weights))}) == 1


def test_a_ratio_that_is_less_than_a_group_comes_every_few_steps() -> None:
    shares = RolloutShares([0.9, 0.1])
    assert sum(shares.counts(2)[1] for _ in range(50)) == 10


def test_a_debt_gets_none_and_nobody_pays_twice() -> None:
    assert apportion([3.0, 2.0, -0.5, -0.5], 4) in ([2, 2, 0, 0], [3, 1, 0, 0])


@given(counts=st.lists(st.integers(0, 8), min_size=1, max_size=5).filter(any))
def test_turns_are_spread(counts: list[int]) -> None:
    order = interleave(counts)
    assert [order.count(place) for place in range(len(counts))] == counts
    for place, count in enumerate(counts):
        for end in range(1, len(order) + 1):
            fair = count * end / len(order)
            assert abs(order[:end].count(place) - fair) <= len(counts)


@pytest.mark.parametrize("ahead", [0, 1])
def test_shares_of_tokens_hold_over_time_whatever_groups_weigh(ahead: int) -> None:
    rng, shares = random.Random(0), TokenShares([3.0, 1.0, 1.0])
    sizes, tokens, waiting = [100, 1000, 30], [0, 0, 0], []
    for step in range(300):
        if step == 150:
            shares = again(shares)
            sizes = [400, 1000, 30]  # answers grow longer
        waiting.append([i for i, count in enumerate(shares.counts(8)) for _ in range(count)])
        if len(waiting) <= ahead:
            continue
        for place in waiting.pop(0):
            found = round(sizes[place] * rng.uniform(0.5, 1.5))
            tokens[place] += found
            shares.observe(place, found)
    assert [each / sum(tokens) for each in tokens] == pytest.approx([0.6, 0.2, 0.2], abs=0.01)


def again(shares: TokenShares) -> TokenShares:
    loaded = TokenShares([3.0, 1.0, 1.0])
    loaded.load(json.loads(json.dumps(shares.state())))
    return loaded
