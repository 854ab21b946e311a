"""One optimizer step on the real tiny model, against a naive loop."""

from __future__ import annotations

import random

import pytest
import torch

from vf.runtime.errors import ConfigError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
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


def naive_gradient(
    policy: Policy, batch: list[Sample], temperature: float
) -> dict[str, torch.Tensor]:
    """One sequence and one token at a time: mean over all trained tokens of −ratio·A."""
    total = sum(sum(sample.branch.loss_mask) for sample in batch)
    loss = torch.zeros(())
    for sample in batch:
        branch = sample.branch
        logits = policy.model(input_ids=torch.tensor([branch.token_ids])).logits[0]
        for t in range(1, len(branch)):
            if branch.loss_mask[t]:
                logprob = (logits[t - 1] / temperature).log_softmax(-1)[branch.token_ids[t]]
                loss = loss - (logprob - branch.logprobs[t]).exp() * sample.advantage / total
    policy.model.zero_grad()
    torch.autograd.backward(loss)
    found = {
        name: parameter.grad.clone()
        for name, parameter in policy.model.named_parameters()
        if parameter.grad is not None
    }
    policy.model.zero_grad()
    return found


@pytest.mark.parametrize("use_lora", [True, False])
@pytest.mark.parametrize("micro_batch_tokens", [2048, 64])
def test_gradient_matches_a_naive_loop(use_lora: bool, micro_batch_tokens: int) -> None:
    args = TrainerArgs(
        use_lora=use_lora,
        temperature=0.8,
        max_seq_len=32,
        max_prompt_len=16,
        micro_batch_tokens=micro_batch_tokens,
        max_grad_norm=1e9,
    )
    policy = Policy("tiny", args)
    if use_lora:  # an adapter starts with B = 0, which hides the gradient of A
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.02)
    batch = samples()
    expected = naive_gradient(policy, batch, args.temperature)
    seen: dict[str, torch.Tensor] = {}
    policy.optimizer.register_step_pre_hook(
        lambda *_: seen.update(
            {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
        )
    )
    stats = policy.update(batch)
    assert seen.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-3, atol=1e-6)
    norm = sum(gradient.square().sum() for gradient in expected.values()) ** 0.5
    assert stats.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert stats.tokens == sum(sum(sample.branch.loss_mask) for sample in batch)


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


def test_gradient_checkpointing_changes_memory_and_not_the_gradient() -> None:
    norms = []
    for on in (False, True):
        torch.manual_seed(0)  # the adapters start alike
        norms.append(
            Policy("tiny", TrainerArgs(gradient_checkpointing=on)).update(samples()).grad_norm
        )
    assert norms[0] > 0
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_an_unknown_lora_target_is_named() -> None:
    with pytest.raises(ConfigError, match=r"lora_target_modules.*no_such_layer"):
        Policy("tiny", TrainerArgs(lora_target_modules=["no_such_layer"]))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
