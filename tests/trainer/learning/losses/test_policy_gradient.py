"""Losses against naive float64 loops over trained tokens, and gradients against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vf.trainer.learning.losses.policy_gradient import (
    Cispo,
    Dppo,
    Dro,
    Gspo,
    LossArrays,
    LossFn,
    Ppo,
    TokenLosses,
    importance_sampling,
)

# Of one token: log p, log q, A and the sequence's mean(log p − log q). Returns the loss, its
# derivative after log p where the sequence's mean counts as the token's own ratio would, and
# whether the token was held back.
Naive = Callable[[float, float, float, float], tuple[float, float, bool]]


def draw(seed: int, rows: int = 4, columns: int = 16, spread: float = 0.5) -> LossArrays:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, columns)
    learner = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    sampler = learner + spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    advantages = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[0, 0] = True
    return LossArrays(learner.requires_grad_(), sampler, advantages, mask)


def losses_of(loss: LossFn, arrays: LossArrays) -> TokenLosses:
    found = loss(arrays)
    assert isinstance(found, TokenLosses)
    return found


def gradient(loss: LossFn, arrays: LossArrays) -> torch.Tensor:
    [found] = torch.autograd.grad(losses_of(loss, arrays).values.sum(), arrays.logprobs)
    return found


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def naive_is(p: float, q: float, a: float, _: float) -> tuple[float, float, bool]:
    loss = -math.exp(p - q) * a
    return loss, loss, False


def naive_ppo(p: float, q: float, a: float, _: float) -> tuple[float, float, bool]:
    r = math.exp(p - q)
    held = (a > 0 and r > 1.3) or (a < 0 and r < 0.8)
    return -min(r * a, clip(r, 0.8, 1.3) * a), 0.0 if held else -r * a, held


def naive_dual(p: float, q: float, a: float, _: float) -> tuple[float, float, bool]:
    loss, slope, held = naive_ppo(p, q, a, _)
    if a < 0 and loss > -1.5 * a:
        return -1.5 * a, 0.0, True
    return loss, slope, held


def naive_cispo(p: float, q: float, a: float, _: float) -> tuple[float, float, bool]:
    r = math.exp(p - q)
    weight = clip(r, 0.8, 1.3)
    return -weight * a * p, -weight * a, not 0.8 <= r <= 1.3


def naive_dro(p: float, q: float, a: float, _: float) -> tuple[float, float, bool]:
    return -(p * a - 0.5 * 0.3 * (p - q) ** 2), -a + 0.3 * (p - q), False


def naive_gspo(p: float, q: float, a: float, mean: float) -> tuple[float, float, bool]:
    s = math.exp(mean)
    held = (a > 0 and s > 1.1) or (a < 0 and s < 0.95)
    return -min(s * a, clip(s, 0.95, 1.1) * a), 0.0 if held else -s * a, held


def naive_dppo(p: float, q: float, a: float, _: float) -> tuple[float, float, bool]:
    moved = math.exp(p) - math.exp(q)
    held = (a > 0 and moved > 0.05) or (a < 0 and moved < -0.08)
    policy = 0.0 if held else -math.exp(p - q) * a
    return policy + 0.2 * (p - q) ** 2, policy + 0.4 * (p - q), held


CASES: dict[str, tuple[LossFn, Naive]] = {
    "importance_sampling": (importance_sampling, naive_is),
    "ppo": (Ppo(0.2, 0.3), naive_ppo),
    "dual clip": (Ppo(0.2, 0.3, 1.5), naive_dual),
    "cispo": (Cispo(0.2, 0.3), naive_cispo),
    "dro": (Dro(0.3), naive_dro),
    "gspo": (Gspo(0.05, 0.1), naive_gspo),
    "dppo": (Dppo(0.08, 0.05, 0.2), naive_dppo),
}
HOLDS_BACK = set(CASES) - {"importance_sampling", "dro"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_matches_the_loop_and_its_gradient(name: str, seed: int) -> None:
    loss, naive = CASES[name]
    arrays = draw(seed)
    found = losses_of(loss, arrays)
    slopes = gradient(loss, arrays)
    held = found.dropped if name == "dppo" else found.clipped
    seen = 0
    for row in range(4):
        trained = [t for t in range(16) if arrays.loss_mask[row, t]]
        gaps = [arrays.logprobs[row, t].item() - arrays.sampler_logprobs[row, t] for t in trained]
        mean = float(sum(gaps)) / max(1, len(gaps))
        for t in range(16):
            if t not in trained:
                assert found.values[row, t] == 0.0
                assert slopes[row, t] == 0.0
                continue
            expected, slope, is_held = naive(
                arrays.logprobs[row, t].item(),
                arrays.sampler_logprobs[row, t].item(),
                arrays.advantages[row, t].item(),
                mean,
            )
            assert found.values[row, t].item() == pytest.approx(expected, rel=1e-10)
            assert slopes[row, t].item() == pytest.approx(slope, rel=1e-10)
            assert held is None or bool(held[row, t]) == is_held
            seen += is_held
    assert held is None or not (held & ~arrays.loss_mask).any()
    assert (seen > 0) == (name in HOLDS_BACK), "the draw must exercise the clip"


def test_gspo_has_the_gradient_of_the_sequence_level_objective() -> None:
    """Eq. 5 of the paper: per sequence −min(s·A, clip(s)·A), averaged over sequences."""
    rows = 12
    arrays = draw(3, rows, spread=0.5)
    advantages = arrays.advantages[:, :1].expand(rows, 16)
    arrays = replace(arrays, advantages=advantages)
    counts = arrays.loss_mask.sum(-1)
    paper = torch.zeros((), dtype=torch.float64)
    for row in range(rows):
        mask = arrays.loss_mask[row]
        gap = (arrays.logprobs[row] - arrays.sampler_logprobs[row])[mask]
        s = gap.mean().exp()
        a = advantages[row, 0]
        paper = paper - torch.minimum(s * a, s.clamp(0.95, 1.1) * a) / rows
    [expected] = torch.autograd.grad(paper, arrays.logprobs)
    values = losses_of(Gspo(0.05, 0.1), arrays).values
    ours = (values / counts[:, None] / rows).sum()  # the `sequence` normalisation
    [got] = torch.autograd.grad(ours, arrays.logprobs)
    assert ours.item() == pytest.approx(paper.item(), rel=1e-12)
    torch.testing.assert_close(got, expected)
    assert 0 < int((expected.abs().sum(-1) > 0).sum()) < rows, "some sequences must be clipped"


@pytest.mark.parametrize("name", [name for name in CASES if name != "dro"])
def test_on_policy_the_gradient_is_minus_the_advantage(name: str) -> None:
    arrays = draw(7)
    arrays = replace(arrays, sampler_logprobs=arrays.logprobs.detach())
    expected = torch.where(arrays.loss_mask, -arrays.advantages, 0.0)
    torch.testing.assert_close(gradient(CASES[name][0], arrays), expected)


def test_dros_quadratic_pulls_the_learner_back_to_the_sampler() -> None:
    arrays = draw(5)
    arrays = replace(arrays, advantages=torch.zeros_like(arrays.advantages))
    expected = torch.where(arrays.loss_mask, 0.3 * arrays.log_ratio.detach(), 0.0)
    torch.testing.assert_close(gradient(Dro(0.3), arrays), expected)


garbage = st.sampled_from([0.0, -1e30, 1e30, float("inf"), float("-inf"), float("nan")])
masks = st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None)
@given(mask=masks, junk=st.tuples(garbage, garbage, garbage), seed=st.integers(0, 99))
def test_what_is_masked_is_never_touched(
    name: str, mask: list[list[bool]], junk: tuple[float, float, float], seed: int
) -> None:
    """Whatever is in masked places, losses and gradients are those without them."""
    loss = CASES[name][0]
    drawn = draw(seed, len(mask), 7)
    keep = torch.tensor(mask)
    clean = replace(drawn, loss_mask=keep)
    p, q, a = (
        torch.where(keep, values.detach(), other)
        for values, other in zip(
            (drawn.logprobs, drawn.sampler_logprobs, drawn.advantages), junk, strict=True
        )
    )
    dirty = LossArrays(p.requires_grad_(), q, a, keep)
    torch.testing.assert_close(losses_of(loss, dirty).values, losses_of(loss, clean).values)
    slopes = gradient(loss, dirty)
    torch.testing.assert_close(slopes, gradient(loss, clean))
    assert not slopes[~keep].any()


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(pad=st.integers(1, 5), seed=st.integers(0, 99))
def test_padding_changes_no_loss(name: str, pad: int, seed: int) -> None:
    loss, arrays = CASES[name][0], draw(seed, 3, 6)
    wider = LossArrays(
        *(
            torch.nn.functional.pad(values.detach(), (0, pad))
            for values in (
                arrays.logprobs,
                arrays.sampler_logprobs,
                arrays.advantages,
                arrays.loss_mask,
            )
        )
    )
    wide = losses_of(loss, wider).values
    torch.testing.assert_close(wide[:, :6], losses_of(loss, arrays).values.detach())
    assert not wide[:, 6:].any()
