"""KL estimators, shaped advantages and ratio quantiles against naive float64 loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vf.trainer.learning.losses.kl import histogram, k1, k2, k3, ratio_quantiles, shaped_advantages
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.alarms import Alarms
from vf.trainer.watching.kl_alarm import observe_kl


def draw(seed: int, count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = -3 * torch.rand(count, generator=generator, dtype=torch.float64)
    return q, q + torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_estimators_match_the_loop_and_their_gradients(seed: int) -> None:
    q, p = draw(seed)
    q.requires_grad_()
    for index in range(len(q)):
        gap = q[index].item() - p[index].item()
        assert k1(q, p)[index].item() == pytest.approx(gap, rel=1e-12)
        assert k2(q, p)[index].item() == pytest.approx(gap**2 / 2, rel=1e-12)
        expected = math.exp(-gap) - 1 + gap
        assert k3(q, p)[index].item() == pytest.approx(expected, rel=1e-10)
    [slope] = torch.autograd.grad(k3(q, p).sum(), q)
    by_hand = [1 - math.exp(b - a) for a, b in zip(q.tolist(), p.tolist(), strict=True)]
    assert slope.tolist() == pytest.approx(by_hand, rel=1e-10)


def test_k1_and_k3_estimate_the_same_divergence() -> None:
    """Over all outcomes of a small distribution, their expectations are the exact KL."""
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    exact = sum(a * math.log(a / b) for a, b in zip(q.tolist(), p.tolist(), strict=True))
    assert (q * k1(q.log(), p.log())).sum().item() == pytest.approx(exact)
    assert (q * k3(q.log(), p.log())).sum().item() == pytest.approx(exact)


masks = st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(mask=masks, discount=st.sampled_from([0.0, 0.5, 0.9, 1.0]), seed=st.integers(0, 99))
def test_shaped_advantages_match_the_loop(
    mask: list[list[bool]], discount: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gaps = torch.randn((len(mask), 6), generator=generator, dtype=torch.float64)
    keep = torch.tensor(mask)
    gaps = torch.where(keep, gaps, math.nan)  # what is masked must not be read
    got = shaped_advantages(gaps, keep, 0.3, 0.7, discount)
    for row, flags in enumerate(mask):
        trained = [t for t, flag in enumerate(flags) if flag]
        for t in range(6):
            ahead = [u for u in trained if u >= t] if flags[t] else []
            expected = sum(
                0.7 * discount**place * (0.3 - gaps[row, u].item()) for place, u in enumerate(ahead)
            )
            assert got[row, t].item() == pytest.approx(expected, abs=1e-12)


def test_without_discount_the_shaping_sums_to_zero() -> None:
    gaps = torch.tensor([[0.1, 0.5, 9.0], [0.0, -0.3, 0.2]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [False, True, True]])
    mean = gaps[mask].mean().item()
    assert shaped_advantages(gaps, mask, mean, 0.4, 0.0).sum().item() == pytest.approx(0.0)


@pytest.mark.parametrize("spread", [1e-4, 0.05, 2.0])
def test_quantiles_of_the_ratio_match_sorting(spread: float) -> None:
    logs = spread * torch.randn(4000, generator=torch.Generator().manual_seed(1)).double()
    counts = sum((histogram(part) for part in (logs[:700], logs[700:])), torch.zeros(()))
    assert counts.sum() == 4000
    shares = (0.0, 0.01, 0.5, 0.99, 1.0)
    ordered = logs.sort().values
    expected = [ordered[max(1, math.ceil(share * 4000)) - 1].item() for share in shares]
    got = [math.log(ratio) for ratio in ratio_quantiles(counts, shares)]
    assert got == pytest.approx(expected, rel=6e-3, abs=6e-6)


def test_wild_ratios_are_counted_at_the_edge() -> None:
    counts = histogram(torch.tensor([-1e9, 0.0, 1e9, math.inf, math.nan]))
    assert counts.sum() == 5
    assert ratio_quantiles(counts, (0.5,)) == pytest.approx([1.0], abs=1e-5)


def test_the_alarm_names_what_to_check_and_rings_once() -> None:
    alarms = Alarms()
    args = TrainerArgs(top_p=0.9, num_substeps=2)
    high = {"kl_sample_train_v1": -0.002, "kl_sample_train_v2": 0.03, "logprob_gap": 1e-4}
    metrics, [note] = observe_kl(alarms.ringing, high, args)
    assert metrics == {"alarm/kl": 1.0}
    for said in ("0.03 nats", "Likely cause: top_p leaves", "(1) num_substeps = 2", "0.0001 nats"):
        assert said in note
    _, [note] = observe_kl(set(), high, args, supported=True)
    assert "Likely cause: num_substeps = 2" in note
    again = Alarms(**alarms.state())  # as a resumed run has it
    assert observe_kl(again.ringing, high, args) == ({"alarm/kl": 1.0}, [])
    assert observe_kl(again.ringing, {"kl_sample_train_v1": 0.0099}, args) == (
        {"alarm/kl": 0.0},
        [],
    )
    assert len(observe_kl(again.ringing, {"kl_sample_train_v1": -0.0101}, args)[1]) == 1


@pytest.mark.parametrize(
    ("metrics", "args", "cause"),
    [
        ({"logprob_gap": 0.2, "staleness/mean": 1.0}, {}, "cause: the engine computes diff"),
        ({"logprob_gap": 0.01, "staleness/mean": 1.0}, {}, "cause: tokens were 1 versions old"),
        ({"logprob_gap": 0.01}, {"num_substeps": 2}, "cause: num_substeps = 2 trains on tokens"),
        ({"logprob_gap": 0.01}, {}, "No setting explains it. Check in this order: (1) logprob_gap"),
        ({}, {}, "No setting explains it. Check in this order: (1) ratio/p99"),
    ],
)
def test_the_alarm_names_the_likely_cause(
    metrics: dict[str, float], args: dict[str, Any], cause: str
) -> None:
    _, [note] = observe_kl(set(), metrics | {"kl_sample_train_v2": 0.02}, TrainerArgs(**args))
    assert cause in note


def test_a_step_that_trained_nothing_rings_no_alarm() -> None:
    assert observe_kl(set(), {"tokens/trained": 0}, TrainerArgs()) == ({"alarm/kl": 0.0}, [])
