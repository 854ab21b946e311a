"""Samples of different temperatures in one optimizer step: each is computed at its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer.test_loop import policy, samples
from vf.trainer.learning.batches.batch import Sample, collate
from vf.trainer.learning.memory.out_of_memory import unpack
from vf.trainer.learning.objective import UpdateStats

TEMPERATURES = [0.5, None, 2.0]  # that of the settings is 0.8


def at_each(**args: Any) -> tuple[Any, list[Sample]]:
    """A policy, and the same tokens at each temperature."""
    made = policy(temperature=0.8, **args)
    plain = [sample for group in samples(2) for sample in group]
    return made, [replace(each, temperature=t) for each in plain for t in TEMPERATURES]


def by_hand(model: Any, sample: Sample) -> torch.Tensor:
    ids = torch.tensor([sample.branch.token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1].double() / (sample.temperature or 0.8)
    found = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    mask = torch.tensor(sample.branch.loss_mask, dtype=torch.float64)
    return torch.cat([torch.zeros(1), found.float()]) * mask


@pytest.mark.parametrize("packing", [True, False])
def test_log_probabilities_are_at_the_temperature_of_the_sample(packing: bool) -> None:
    made, mixed = at_each(packing=packing)
    for sample, found in zip(mixed, made.sample_logprobs(mixed), strict=True):
        assert torch.allclose(found, by_hand(made.model, sample).float(), atol=2e-5)


def test_old_log_probabilities_of_equal_tokens_are_distinguished() -> None:
    made, mixed = at_each(importance_sampling_mode="token_truncate")
    for sample, known in zip(mixed, made.with_old_logprobs(mixed), strict=True):
        expected = by_hand(made.model, sample).float()
        assert torch.allclose(torch.tensor(known.old_logprobs), expected, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_step_is_the_sum_of_its_temperatures(kl: float) -> None:
    together, mixed = at_each(kl_penalty_coef=kl)
    apart, _ = at_each(kl_penalty_coef=kl)
    together.accumulate(mixed)
    for temperature in TEMPERATURES:
        apart.accumulate([each for each in mixed if each.temperature == temperature])
    found: list[UpdateStats] = [together.finish(), apart.finish()]
    assert found[0].grad_norm == pytest.approx(found[1].grad_norm, rel=1e-4)
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-4)
    own = policy(temperature=0.5, kl_penalty_coef=kl)
    own.accumulate([replace(each, temperature=None) for each in mixed if each.temperature == 0.5])
    half, _ = at_each(kl_penalty_coef=kl)
    half.accumulate([each for each in mixed if each.temperature == 0.5])
    assert half.finish().grad_norm == pytest.approx(own.finish().grad_norm, rel=1e-5)


def test_a_micro_batch_has_one_temperature_and_keeps_it() -> None:
    _, mixed = at_each()
    hot = [each for each in mixed if each.temperature == 2.0]
    batch = collate(hot).to(torch.device("cpu"))
    assert batch.temperature == 2.0
    assert {each.temperature for each in unpack(batch)} == {2.0}
    with pytest.raises(ValueError, match="unpack"):
        collate(mixed)
