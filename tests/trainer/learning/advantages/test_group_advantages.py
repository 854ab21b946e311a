"""Advantages against their formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf.trainer.learning.advantages.group_advantages import group_advantages
from vf.trainer.run.group import is_uniform

rewards = st.lists(st.floats(0, 1), min_size=2, max_size=20)


def test_mean_by_hand() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]


def test_mean_std_by_hand() -> None:
    # mean 0.25, population deviation sqrt(0.1875)
    got = group_advantages([1.0, 0.0, 0.0, 0.0], "mean_std")
    assert got == pytest.approx(
        [0.75 / math.sqrt(0.1875)] + [-0.25 / math.sqrt(0.1875)] * 3, rel=1e-5
    )


@given(rewards)
def test_advantages_are_centred_and_keep_the_order(values: list[float]) -> None:
    got = group_advantages(values)
    assert math.fsum(got) == pytest.approx(0.0, abs=1e-9)
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            if a > b:
                assert got[i] >= got[j]


@given(st.floats(0, 1), st.integers(2, 10))
def test_equal_rewards_have_no_advantage(value: float, count: int) -> None:
    assert is_uniform([value] * count)
    zeros = pytest.approx([0.0] * count, abs=1e-9)
    assert group_advantages([value] * count) == zeros
    assert group_advantages([value] * count, "mean_std") == zeros


@given(rewards)
def test_rloo_is_the_reward_less_the_mean_of_the_others(values: list[float]) -> None:
    for index, got in enumerate(group_advantages(values, "rloo")):
        others = values[:index] + values[index + 1 :]
        assert got == pytest.approx(values[index] - sum(others) / len(others), abs=1e-9)


@given(rewards)
def test_mean_std_matches_the_loop(values: list[float]) -> None:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    expected = [(value - mean) / (deviation + 1e-6) for value in values]
    assert group_advantages(values, "mean_std") == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.booleans(), min_size=2, max_size=20))
def test_max_rl_averages_over_successes_only(wins: list[bool]) -> None:
    """(1/n)·ΣAᵢ·gᵢ is mean(g of successes) − mean(g): the paper's estimator with its baseline."""
    got = group_advantages([float(win) for win in wins], "max_rl")
    scores = [math.sin(index) for index in range(len(wins))]  # stand for ∇log p of the rollouts
    estimate = sum(a * g for a, g in zip(got, scores, strict=True)) / len(wins)
    won = [g for win, g in zip(wins, scores, strict=True) if win]
    expected = sum(won) / len(won) - sum(scores) / len(scores) if won else 0.0
    assert estimate == pytest.approx(expected, abs=1e-9)


def test_max_rl_takes_no_negative_reward() -> None:
    with pytest.raises(ValueError, match="no negative"):
        group_advantages([-0.1, 1.0], "max_rl")


def test_an_empty_group_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        group_advantages([])
