"""Weights for what separates engine and trainer, against naive float64 loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer.learning.losses.test_losses_update import (
    gradients,
    naive_gradients,
    naive_terms,
    policy,
)
from tests.trainer.learning.losses.test_policy_gradient import CASES, Naive, draw, naive_dppo
from tests.trainer.learning.test_policy import samples
from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.batches.normalisation import Totals
from vf.trainer.learning.losses.importance_sampling import Correction
from vf.trainer.learning.losses.policy_gradient import LossArrays
from vf.trainer.learning.model.forward import Predictions
from vf.trainer.learning.objective import Objective
from vf.trainer.settings.config import TrainerArgs

MODES = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
HIGH, LOW = 1.6, 0.7
# The settings of the losses in test_losses.py.
SETTINGS: dict[str, dict[str, Any]] = {
    "importance_sampling": {},
    "ppo": {"clip_low": 0.2, "clip_high": 0.3},
    "dual clip": {"loss_fn": "ppo", "clip_low": 0.2, "clip_high": 0.3, "dual_clip": 1.5},
    "cispo": {"clip_low": 0.2, "clip_high": 0.3},
    "dro": {"dro_beta": 0.3},
    "gspo": {"sequence_clip_low": 0.05, "sequence_clip_high": 0.1},
    "dppo": {"drop_low": 0.08, "drop_high": 0.05, "dppo_tau": 0.2},
}


def objective(name: str, mode: Any, **args: Any) -> Objective:
    clips: dict[str, Any] = {"importance_sampling_clip_max": HIGH}
    if mode.endswith("_mask"):
        clips["importance_sampling_clip_min"] = LOW
    if mode == "off":
        clips = {}
    settings = {"loss_fn": name, **SETTINGS[name], **clips, **args}
    return Objective(TrainerArgs(importance_sampling_mode=mode, **settings))


def batch_of(arrays: LossArrays) -> MicroBatch:
    """Return a micro-batch in float64 whose token losses all weigh 1."""
    mask = arrays.loss_mask
    ids, ones = torch.zeros(mask.shape, dtype=torch.long), torch.ones((len(mask), 1))
    sampler, advantages = arrays.sampler_logprobs, arrays.advantages
    batch = MicroBatch(ids, ids + 1, mask, sampler, advantages, ones.double())
    return replace(batch, old_logprobs=arrays.old_logprobs)


def minimised(made: Objective, arrays: LossArrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and its gradient after log p, float64 ``[B, L]``."""
    logprobs = arrays.logprobs[arrays.loss_mask]
    loss, _ = made(batch_of(arrays), Predictions(logprobs, torch.zeros_like(logprobs)))
    [slopes] = torch.autograd.grad(loss, arrays.logprobs)
    return loss.detach(), slopes


def naive_weight(mode: str, gaps: list[float], own: float) -> float:
    weight = math.exp(sum(gaps) if mode.startswith("sequence") else own)
    if mode.endswith("truncate"):
        return min(weight, HIGH)
    return weight if LOW <= weight <= HIGH else 0.0


def drawn(seed: int) -> LossArrays:
    arrays = draw(seed, rows=8, columns=6)
    generator = torch.Generator().manual_seed(seed + 100)
    noise = torch.randn(arrays.logprobs.shape, generator=generator, dtype=torch.float64)
    return replace(arrays, old_logprobs=arrays.logprobs.detach() + 0.3 * noise)


def expected_terms(naive: Naive, mode: str, arrays: LossArrays) -> tuple[float, torch.Tensor]:
    assert arrays.old_logprobs is not None
    total, slopes = 0.0, torch.zeros_like(arrays.logprobs)
    for row in range(len(arrays.logprobs)):
        trained = [t for t in range(6) if arrays.loss_mask[row, t]]
        p, o, q, a = (
            [values[row, t].item() for t in trained]
            for values in (
                arrays.logprobs,
                arrays.old_logprobs,
                arrays.sampler_logprobs,
                arrays.advantages,
            )
        )
        gaps = [old - sampled for old, sampled in zip(o, q, strict=True)]
        mean = sum(x - y for x, y in zip(p, o, strict=True)) / max(1, len(trained))
        for place, t in enumerate(trained):
            weight = naive_weight(mode, gaps, gaps[place])
            loss, slope, held = naive(p[place], o[place], a[place], mean)
            if naive is naive_dppo:  # the distance is to the sampler, the ratio to the old policy
                _, _, held = naive(p[place], q[place], a[place], mean)
                policy = 0.0 if held else -math.exp(p[place] - o[place]) * a[place]
                far = p[place] - q[place]
                loss, slope = policy + 0.2 * far**2, policy + 0.4 * far
            total += weight * loss
            slopes[row, t] = weight * slope
    return total, slopes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_a_corrected_loss_matches_the_loop_and_its_gradient(
    name: str, mode: str, seed: int
) -> None:
    arrays = drawn(seed)
    loss, slopes = minimised(objective(name, mode), arrays)
    total, expected = expected_terms(CASES[name][1], mode, arrays)
    assert loss.item() == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(slopes, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_where_engine_and_trainer_agree_nothing_changes(name: str, mode: str) -> None:
    arrays = draw(3, rows=8, columns=6)
    same = arrays.sampler_logprobs
    corrected = minimised(objective(name, mode), replace(arrays, old_logprobs=same))
    for got, expected in zip(corrected, minimised(objective(name, "off"), arrays), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "gspo"])
def test_before_the_first_optimizer_step_the_ratio_is_one(name: str) -> None:
    """Without other log-probabilities the gradient is −min(p / q, C)·A (TIS)."""
    arrays = draw(4, rows=8, columns=6)
    _, slopes = minimised(objective(name, "token_truncate"), arrays)
    weights = (arrays.logprobs.detach() - arrays.sampler_logprobs).exp().clamp(max=HIGH)
    expected = torch.where(arrays.loss_mask, -weights * arrays.advantages, 0.0)
    torch.testing.assert_close(slopes, expected, rtol=1e-12, atol=0.0)


def test_a_bound_that_is_never_reached_gives_the_off_policy_gradient() -> None:
    """p / sg(p) · sg(p / q) has the gradient of p / q."""
    arrays = draw(5, rows=8, columns=6)
    far = objective("importance_sampling", "token_truncate", importance_sampling_clip_max=1e9)
    _, slopes = minimised(far, arrays)
    _, expected = minimised(objective("importance_sampling", "off"), arrays)
    torch.testing.assert_close(slopes, expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("mode", MODES)
def test_no_token_weighs_more_than_the_bound(mode: str) -> None:
    """However unlikely the sampler found it; without a correction the gradient overflows."""
    arrays = draw(6, rows=8, columns=6)
    arrays = replace(arrays, sampler_logprobs=arrays.logprobs.detach() - 800.0)
    _, slopes = minimised(objective("importance_sampling", mode), arrays)
    assert bool((slopes.abs() <= HIGH * arrays.advantages.abs() * (1 + 1e-12)).all())
    assert bool(slopes.any()) == mode.endswith("truncate")
    _, unbounded = minimised(objective("importance_sampling", "off"), arrays)
    assert not torch.isfinite(unbounded).all()


def test_masks_are_symmetric_by_default() -> None:
    asked = TrainerArgs(importance_sampling_mode="token_mask", importance_sampling_clip_max=4.0)
    found = Correction.of(asked)
    assert found == Correction(0.25, 4.0, of_sequence=False)
    assert Correction.of(TrainerArgs()) is None


@pytest.mark.parametrize("mode", MODES)
def test_what_the_weights_did_is_seen(mode: str) -> None:
    arrays = drawn(8)
    made, mask = objective("ppo", mode), arrays.loss_mask
    logprobs = arrays.logprobs[mask]
    _, sums = made(batch_of(arrays), Predictions(logprobs, torch.zeros_like(logprobs)))
    stats = made.stats(sums, 1.0, 0.0, Totals(tokens=int(mask.sum())))
    weights, gaps = [], []
    for row in range(8):
        own = [float(g) for g in (arrays.old_logprobs - arrays.sampler_logprobs)[row][mask[row]]]  # type: ignore[operator]
        weights += [naive_weight(mode, own, gap) for gap in own]
        gaps += own
    raw = [math.exp(gap) for gap in gaps]
    if mode.startswith("sequence"):
        raw = [
            math.exp(float((arrays.log_weights * mask)[row].sum()))
            for row in range(8)
            for _ in range(int(mask[row].sum()))
        ]
    moved = [w != pytest.approx(v, rel=1e-9) for w, v in zip(weights, raw, strict=True)]
    assert 0 < sum(moved) < len(moved)
    assert stats.importance_weight == pytest.approx(sum(weights) / len(weights))
    assert stats.bounded_fraction == pytest.approx(sum(moved) / len(moved))
    assert stats.kl_old_v1 == pytest.approx(-sum(gaps) / len(gaps))
    k3 = [math.exp(gap) - 1 - gap for gap in gaps]
    assert stats.kl_old_v3 == pytest.approx(sum(k3) / len(k3))


@pytest.mark.parametrize("packing", [True, False])
def test_old_logprobs_are_those_of_the_weights_that_the_batch_began_with(packing: bool) -> None:
    """Two optimizer steps on one batch, in micro-batches, against a loop over tokens."""
    settings: dict[str, Any] = {
        "loss_fn": "ppo",
        "importance_sampling_mode": "token_truncate",
        "importance_sampling_clip_max": 1.0,
        "learning_rate": 1e-3,
        "micro_batch_tokens": 40,
        "packing": packing,
    }
    made, batch = policy(**settings), samples()
    with torch.no_grad():
        old = [{t: float(p) for p, _, t in naive_terms(made, sample)} for sample in batch]
    for sample, naive in zip(batch, old, strict=True):  # an engine that is somewhat off
        for t, value in naive.items():
            sample.branch.logprobs[t] = value + math.sin(7.0 * t)
    known = made.with_old_logprobs([*batch, *batch])
    assert known[: len(batch)] == known[len(batch) :]
    for sample, naive in zip(known, old, strict=False):
        found = {t: value for t, value in enumerate(sample.old_logprobs) if value}
        assert found == pytest.approx(naive, abs=1e-5)
    made.update(batch)
    loss, total = torch.zeros(()), sum(map(len, old))
    for sample, naive in zip(batch, old, strict=True):
        for logprob, _, t in naive_terms(made, sample):
            weight = min(math.exp(naive[t] - sample.branch.logprobs[t]), 1.0)
            ratio = (logprob - naive[t]).exp()
            clipped = ratio.clamp(0.8, 1.2) * sample.advantage
            loss = loss - weight * torch.minimum(ratio * sample.advantage, clipped) / total
    expected = naive_gradients(made, loss)
    got = gradients(made, known[: len(batch)])
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float((got[name] - gradient).norm()) < 1e-4 * float(gradient.norm())
    assert made.with_old_logprobs(batch)[0].old_logprobs != known[0].old_logprobs


def test_a_sample_that_is_cut_keeps_the_logprobs_of_what_is_left() -> None:
    made = policy(importance_sampling_mode="token_mask", long_sequences="truncate")
    made.args = made.args.model_copy(update={"max_seq_len": 20})
    batch = samples()
    assert any(len(each) > 20 for each in batch)
    known = made.with_old_logprobs(batch)
    found = made.update(known)
    assert found.too_long > 0
    assert found.kl_old_v1 == pytest.approx(found.kl_v1)  # the weights have not changed since


def test_without_a_correction_nothing_is_computed() -> None:
    made, batch = policy(), samples()
    assert made.with_old_logprobs(batch) == batch
