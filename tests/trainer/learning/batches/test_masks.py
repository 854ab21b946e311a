"""Only sampled tokens carry loss, and every prediction lands on the token it predicts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import MicroBatch, Sample, micro_batches
from vf.trainer.learning.model.forward import token_logprobs
from vf.trainer.learning.objective import Objective
from vf.trainer.settings.config import TrainerArgs


def branch(token_ids: list[int], loss_mask: list[int], logprob: float = -1.0) -> Branch:
    logprobs = [logprob if sampled else 0.0 for sampled in loss_mask]
    count = len(token_ids)
    return Branch(token_ids, loss_mask, logprobs, [0] * count, [0] * count)


class Table:
    """A model whose logits are a tensor, whatever it is asked."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, *, input_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.logits[: len(input_ids), logits_to_keep])


def test_six_tokens_by_hand() -> None:
    # prompt 3 1, sampled 2, tool 0, sampled 1 3
    batch = micro_batches([Sample(branch([3, 1, 2, 0, 1, 3], [0, 0, 1, 0, 1, 1]), 1.0)], 100)[0]
    logits = torch.zeros(1, 6, 4)
    logits[0, 1] = torch.tensor([0.0, 0.0, math.log(3), 0.0])  # before token 2: p = 3/6
    logits[0, 3] = torch.tensor([0.0, math.log(5), 0.0, 0.0])  # before token 1: p = 5/8
    logits[0, 4] = torch.tensor([0.0, 0.0, 0.0, math.log(7)])  # before token 3: p = 7/10
    logprobs, entropy, *_ = token_logprobs(Table(logits), batch, temperature=1.0)
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.625), math.log(0.7)])
    by_hand = -(0.5 * math.log(0.5) + 3 * (1 / 6) * math.log(1 / 6))
    assert entropy[0].item() == pytest.approx(by_hand, rel=1e-5)


def test_temperature_divides_the_logits() -> None:
    batch = micro_batches([Sample(branch([0, 1], [0, 1]), 1.0)], 100)[0]
    logits = torch.tensor([[[0.0, 2.0], [0.0, 0.0]]])
    logprobs = token_logprobs(Table(logits), batch, temperature=2.0).logprobs
    assert logprobs.item() == pytest.approx(-math.log(1 + math.exp(-1.0)))


def random_samples(seed: int) -> list[Sample]:
    generator = torch.Generator().manual_seed(seed)

    def integers(high: int, count: int) -> list[int]:
        return torch.randint(high, (count,), generator=generator).tolist()

    samples = []
    for length in integers(9, 6):
        length += 3
        mask = [0, *integers(2, length - 2), 1]
        samples.append(Sample(branch(integers(11, length), mask), 1.0))
    return samples


@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_zero_on_everything_that_was_not_sampled(seed: int) -> None:
    for batch in micro_batches(random_samples(seed), 40):
        rows, columns = batch.input_ids.shape
        logits = torch.randn(rows, columns, 11, requires_grad=True)
        found = token_logprobs(Table(logits), batch, temperature=1.3)
        mask = batch.loss_mask
        torch.autograd.backward(Objective(TrainerArgs())(batch, found)[0])
        assert logits.grad is not None
        touched = logits.grad.abs().sum(-1) > 0
        expected = torch.zeros_like(mask)
        expected[:, :-1] = mask[:, 1:]  # the prediction of token t is made at t - 1
        assert torch.equal(touched, expected)


@pytest.mark.parametrize("seed", range(5))
def test_logprobs_match_a_naive_loop(seed: int) -> None:
    batches = micro_batches(random_samples(seed), 60)
    for batch in batches:
        rows, columns = batch.input_ids.shape
        logits = torch.randn(rows, columns, 11)
        got = token_logprobs(Table(logits), batch, temperature=0.7).logprobs
        expected = [
            (logits[b, t - 1] / 0.7).log_softmax(-1)[batch.input_ids[b, t]].item()
            for b in range(rows)
            for t in range(1, columns)
            if batch.loss_mask[b, t]
        ]
        assert got.tolist() == pytest.approx(expected, abs=1e-5)


def test_micro_batches_hold_every_token_once_under_the_budget() -> None:
    samples = random_samples(3)
    batches = micro_batches(samples, max_tokens=24, max_rows=2)
    assert all(batch.input_ids.numel() <= 24 and len(batch.input_ids) <= 2 for batch in batches)

    def rows(batch: MicroBatch) -> list[list[int]]:
        lengths = batch.attention_mask.sum(-1).tolist()
        return [ids[:n].tolist() for ids, n in zip(batch.input_ids, lengths, strict=True)]

    packed = sorted(row for batch in batches for row in rows(batch))
    assert packed == sorted(sample.branch.token_ids for sample in samples)


def test_a_sample_over_the_budget_gets_a_batch_of_its_own() -> None:
    long = Sample(branch(list(range(10)), [0] * 9 + [1]), 1.0)
    short = Sample(branch([1, 2], [0, 1]), 1.0)
    assert [b.input_ids.shape[0] for b in micro_batches([short, long], max_tokens=8)] == [1, 1]


def test_a_sampled_first_token_has_no_prediction_to_train() -> None:
    batch = micro_batches([Sample(branch([1, 2, 3], [1, 0, 1]), 1.0)], 100)[0]
    assert batch.loss_mask.tolist() == [[False, False, True]]
