"""Losses against a naive float64 loop, and their gradients against the closed form."""

from __future__ import annotations

import math

import pytest
import torch

from vf.trainer.losses import Ppo, importance_sampling


def draw(seed: int, count: int = 50) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    learner = -3 * torch.rand(count, generator=generator, dtype=torch.float64)
    sampler = learner + 0.5 * torch.randn(count, generator=generator, dtype=torch.float64)
    return learner, sampler, torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_importance_sampling_matches_the_loop_and_its_gradient(seed: int) -> None:
    learner, sampler, advantages = draw(seed)
    learner.requires_grad_()
    losses = importance_sampling(learner, sampler, advantages)
    torch.autograd.backward(losses.sum())
    for index in range(len(losses)):
        ratio = math.exp(learner[index].item() - sampler[index].item())
        expected = -ratio * advantages[index].item()
        assert losses[index].item() == pytest.approx(expected, rel=1e-12)
        assert learner.grad is not None
        assert learner.grad[index].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ppo_matches_the_loop_and_its_gradient(seed: int) -> None:
    learner, sampler, advantages = draw(seed)
    learner.requires_grad_()
    losses = Ppo(0.2, 0.3)(learner, sampler, advantages)
    torch.autograd.backward(losses.sum())
    clipped = 0
    for index in range(len(losses)):
        ratio = math.exp(learner[index].item() - sampler[index].item())
        advantage = advantages[index].item()
        bounded = min(max(ratio, 0.8), 1.3)
        assert losses[index].item() == pytest.approx(
            -min(ratio * advantage, bounded * advantage), rel=1e-12
        )
        held = (advantage > 0 and ratio > 1.3) or (advantage < 0 and ratio < 0.8)
        clipped += held
        assert learner.grad is not None
        expected = 0.0 if held else -ratio * advantage
        assert learner.grad[index].item() == pytest.approx(expected, rel=1e-12)
    assert clipped > 0, "the draw must exercise the clip"


def test_on_policy_the_gradient_is_minus_the_advantage() -> None:
    learner, _, advantages = draw(7)
    learner.requires_grad_()
    torch.autograd.backward(importance_sampling(learner, learner.detach(), advantages).sum())
    assert torch.equal(learner.grad, -advantages)  # type: ignore[arg-type]
