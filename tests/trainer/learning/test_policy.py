"""One optimizer step on the real tiny model, against a naive loop."""

from __future__ import annotations

import random

import pytest
import torch

from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.learning_rate import advice, auto_learning_rate
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs


def samples(seed: int = 0, count: int = 6) -> list[Sample]:
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        length = rng.randint(6, 30)
        mask = [0, 0, *(rng.randint(0, 1) for _ in range(length - 3)), 1]
        ids = [rng.randrange(512) for _ in range(length)]
        logprobs = [-6.0 * m for m in mask]
        branch = Branch(ids, mask, logprobs, [0] * length, [0] * length)
        out.append(Sample(branch, rng.uniform(-1, 1)))
    return out


def test_lora_trains_the_adapter_and_nothing_else() -> None:
    policy = Policy("tiny", TrainerArgs())
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    policy.update(samples())
    changed = {n for n, p in policy.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed
    assert all("lora_" in name for name in changed)


def test_the_gradient_norm_is_clipped() -> None:
    steps = []
    for limit in (1e-3, 1e9):
        policy = Policy("tiny", TrainerArgs(use_lora=False, max_grad_norm=limit))
        norms: list[float] = []

        def note(*_: object, policy: Policy = policy, norms: list[float] = norms) -> None:
            squares = [p.grad.square().sum() for p in policy.model.parameters()]
            norms.append(float(sum(squares) ** 0.5))

        policy.optimizer.register_step_pre_hook(note)
        policy.update(samples())
        steps.append(norms[0])
    assert steps[0] == pytest.approx(1e-3, rel=1e-2)
    assert steps[1] > 1e-2


def test_warmup_and_decay_of_the_learning_rate() -> None:
    policy = Policy(
        "tiny",
        TrainerArgs(learning_rate=1e-3, warmup_steps=2, lr_scheduler_type="linear", max_steps=4),
    )
    rates = [policy.learning_rate]
    for _ in range(4):
        policy.update(samples())
        rates.append(policy.learning_rate)
    assert rates == pytest.approx([0.0, 5e-4, 1e-3, 5e-4, 0.0])


def test_a_step_whose_loss_is_not_finite_is_skipped() -> None:
    policy = Policy("tiny", TrainerArgs())
    before = policy.weights.trainable_state()
    broken = samples()
    broken[0].branch.logprobs[-1] = float("-inf")
    assert policy.update(broken).skipped
    after = policy.weights.trainable_state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (policy.optimizer_steps, policy.position) == (0, 1)
    stats = policy.update(samples())
    assert not stats.skipped
    assert stats.grad_norm > 0
    assert policy.optimizer_steps == 1


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_adams_settings_reach_the_optimizer() -> None:
    made = Policy(
        "tiny", TrainerArgs(betas=[0.8, 0.99], eps=1e-6, weight_decay=0.3, learning_rate="auto")
    )
    [settings] = made.optimizer.param_groups
    assert settings["betas"] == (0.8, 0.99)
    assert (settings["eps"], settings["weight_decay"]) == (1e-6, 0.3)
    assert made.learning_rate == pytest.approx(1e-5 * 4096 / 144)


def test_the_rule_for_the_learning_rate() -> None:
    full = TrainerArgs(use_lora=False, learning_rate="auto")
    assert auto_learning_rate(full, 4096) == pytest.approx(1e-6)
    assert auto_learning_rate(full, 1024) == pytest.approx(4e-6)
    lora = TrainerArgs(batch_size=256, lora_alpha=64)
    assert auto_learning_rate(lora, 4096) == pytest.approx(10 * 2 / 2 * 1e-6)
    assert advice(full, 64) is None
    assert advice(TrainerArgs(learning_rate=1e-5), 4096) is None
    high = advice(TrainerArgs(learning_rate=1e-3), 4096) or ""
    assert "100 times what" in high
    assert "lower it, or take more rollouts" in high
    assert "raise it" in (advice(TrainerArgs(learning_rate=1e-7), 4096) or "")
