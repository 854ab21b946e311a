"""Padded, packed, and packed with shared prefixes: one gradient, parameter by parameter."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tests.trainer.learning.forked_samples import forked_samples
from tests.trainer.learning.losses.test_losses_update import gradients, shake
from vf.trainer.learning.attention import prefix_tree
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

LORA: dict[str, dict[str, Any]] = {
    "plain": {},
    "per sequence": {"loss_fn": "gspo", "loss_normalisation": "sequence", "temperature": 0.7},
    "all terms": {"entropy_coef": 0.01, "kl_penalty_coef": 0.1, "loss_fn": "cispo"},
    "head": {"train_unembed": True, "entropy_coef": 0.01, "gradient_checkpointing": True},
}
FULL: dict[str, dict[str, Any]] = {
    "plain": {},
    "all terms": {"entropy_coef": 0.01, "loss_fn": "ppo", "temperature": 1.3},
    "rows": {"micro_batch_size": 2},
}
CASES: list[Any] = [(True, name) for name in LORA] + [
    (False, name) for name in ("all terms", "rows")
]
CASES += [pytest.param(False, "plain", marks=pytest.mark.slow)]
WAYS: tuple[dict[str, Any], ...] = (
    {"packing": False},
    {"share_prefixes": False},
    {"share_prefixes": True},
)


@cache
def policies(use_lora: bool, case: str) -> list[Policy]:
    """Return equal policies that go these ways; they hardly move when they learn."""
    made = []
    for way in WAYS:
        torch.manual_seed(0)
        args = {"max_seq_len": 150, "max_prompt_len": 100, "micro_batch_tokens": 160} | way
        args |= {"use_lora": use_lora, "learning_rate": 1e-12, "max_grad_norm": 1e9}
        policy = Policy("tiny", TrainerArgs(**args, **(LORA if use_lora else FULL)[case]))
        if use_lora:
            shake(policy)
        made.append(policy)
    return made


def compare(use_lora: bool, case: str, batch: list[Sample]) -> None:
    padded, *others = policies(use_lora, case)
    expected = gradients(padded, batch)
    for policy in others:
        assert policy.forward.how == "packed"
        found = gradients(policy, batch)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            gap = (found[name] - gradient).norm()
            assert gap <= 3e-4 * gradient.norm() + 1e-9, (name, gap, gradient.norm())


@pytest.mark.parametrize(("use_lora", "case"), CASES)
def test_three_ways_give_one_gradient(use_lora: bool, case: str) -> None:
    for seed in range(2):
        compare(use_lora, case, forked_samples(seed))


@pytest.mark.slow
@pytest.mark.parametrize("use_lora", [True, False])
def test_every_fork_there_is_can_be_shared(use_lora: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep trees, segments of one token, branches that end within another."""
    monkeypatch.setattr(prefix_tree, "SEGMENT_COST", 0)
    monkeypatch.setattr(prefix_tree, "MERGE_COST", 0.0)
    for seed in range(8):
        compare(use_lora, "plain", forked_samples(seed, groups=1, rollouts=5))


def test_the_loss_is_the_same_and_fewer_tokens_are_computed() -> None:
    batch = forked_samples(3, groups=2, rollouts=6)
    padded, packed, shared = (policy.update(batch) for policy in policies(True, "plain"))
    for stats in (packed, shared):
        assert stats.loss == pytest.approx(padded.loss, rel=1e-4)
        assert stats.entropy == pytest.approx(padded.entropy, rel=1e-5)
        assert stats.kl_v3 == pytest.approx(padded.kl_v3, rel=1e-4)
        assert stats.tokens == padded.tokens
        assert stats.processed_tokens == padded.processed_tokens == packed.computed_tokens
    assert shared.computed_tokens < 0.7 * packed.computed_tokens < padded.computed_tokens


def test_parts_of_a_step_add_up_to_the_step() -> None:
    """A shared prompt whose branches fall into different calls is still the same sum."""
    whole, parts = policies(True, "plain")[2], policies(True, "plain")[1]
    batch = forked_samples(5, groups=3)
    expected = gradients(whole, batch)
    seen: dict[str, torch.Tensor] = {}

    def note(*_: object) -> None:
        named = parts.model.named_parameters()
        seen.update({name: p.grad.clone() for name, p in named if p.grad is not None})

    handle = parts.optimizer.register_step_pre_hook(note)
    for place in range(0, len(batch), 4):
        parts.accumulate(batch[place : place + 4])
    parts.finish()
    handle.remove()
    for name, gradient in expected.items():
        assert (seen[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-9, name


def test_dropout_turns_sharing_off_and_packing_stays() -> None:
    made = Policy("tiny", TrainerArgs(lora_dropout=0.1))
    stats = made.update(forked_samples(3))
    assert made.forward.how == "packed"
    assert stats.computed_tokens == stats.processed_tokens
