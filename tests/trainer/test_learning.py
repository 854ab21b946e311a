"""A reward that can be learned is learned, and noise is not."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from vf.trainer.rl_trainer import RLTrainer

pytestmark = pytest.mark.slow


def digit_share(make_trainer: Any, shuffled: bool) -> tuple[float, float]:
    trainer: RLTrainer = make_trainer(
        max_steps=12, batch_size=96, learning_rate=5e-4, env_args={"shuffled": shuffled}
    )
    lines = [trainer.step() for _ in range(12)]
    name = "metric/digits" if shuffled else "reward/mean"
    shares = [line[name] for line in lines]
    return fmean(shares[:2]), fmean(shares[-2:])


def test_reward_rises_on_a_learnable_task(make_trainer: Any) -> None:
    first, last = digit_share(make_trainer, shuffled=False)
    assert last > first + 0.2


def test_behaviour_stays_where_rewards_are_noise(make_trainer: Any) -> None:
    first, last = digit_share(make_trainer, shuffled=True)
    assert abs(last - first) < 0.15
