"""Estimates of a KL divergence from sampled tokens, the KL's share of advantages, and quantiles.

With tokens drawn from q, and d = log q − log p, Schulman's estimators of KL(q ‖ p) are
k1 = d, k2 = ½d² and k3 = exp(−d) − 1 + d (http://joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

BINS = 4096
SCALE = 1e-3  # nats: finer differences than this hardly matter
WIDEST = 60.0  # nats; what is farther counts as this


def k1(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """log q − log p, in nats, of any shape: unbiased, of either sign."""
    return log_q - log_p


def k2(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """½(log q − log p)², in nats, of any shape: biased, never negative."""
    return 0.5 * (log_q - log_p).square()


def k3(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """exp(log p − log q) − 1 − (log p − log q), in nats: unbiased and never negative.

    As a loss against a reference p, with q the learner: GRPO, arXiv:2402.03300, eq. 4.
    """
    gap = log_p - log_q
    return gap.expm1() - gap


def shaped_advantages(
    gaps: torch.Tensor, mask: torch.Tensor, mean_gap: float, coef: float, discount: float
) -> torch.Tensor:
    """Return what the KL against the reference adds to the advantages.

    With dₜ = log q − log p_ref of token t, of the sequence's trained tokens only, numbered
    consecutively: β · Σ_{u ≥ t} γ^{u − t} (mean(d) − d_u). Over a whole batch and with γ = 0 it
    sums to 0.

    Args:
        gaps: d, float32 ``[B, L]``.
        mask: bool ``[B, L]``, the trained tokens.
        mean_gap: mean(d) over the trained tokens of the optimizer step, in nats.
        coef: β.
        discount: γ, in [0, 1].

    Returns:
        float32 ``[B, L]``, 0 where nothing is trained.
    """
    own = torch.where(mask, coef * (mean_gap - gaps), torch.zeros_like(gaps))
    if discount == 0.0:
        return own
    shaped = torch.zeros_like(own)
    ahead = torch.zeros_like(own[:, 0])
    for column in reversed(range(own.shape[1])):
        # Context between two sampled tokens does not discount: it takes no time of the model's.
        trained = mask[:, column]
        ahead = torch.where(trained, own[:, column] + discount * ahead, ahead)
        shaped[:, column] = torch.where(trained, ahead, torch.zeros_like(ahead))
    return shaped


def histogram(log_ratios: torch.Tensor) -> torch.Tensor:
    """Count log ratios in bins that can be added up over micro-batches and ranks.

    The bins are even in asinh(log r / 0.001), so their width is 5.7e-6 nats around 0, and 0.57 % of
    a large log r.

    Args:
        log_ratios: log p − log q, float ``[N]``, in nats.

    Returns:
        float64 ``[BINS]``, on the CPU.
    """
    values = torch.nan_to_num(log_ratios.detach().double().cpu(), 0.0, WIDEST, -WIDEST)
    reach = torch.asinh(torch.tensor(WIDEST / SCALE, dtype=torch.float64))
    position = torch.asinh(values.clamp(-WIDEST, WIDEST) / SCALE) / reach  # in [−1, 1]
    bins = ((position + 1.0) * 0.5 * (BINS - 1)).round().long()
    return torch.bincount(bins, minlength=BINS).double()


def ratio_quantiles(counts: torch.Tensor, shares: Sequence[float]) -> list[float]:
    """Return the importance ratios r below which these shares of the tokens lie.

    Args:
        counts: A sum of :func:`histogram`, float64 ``[BINS]``, of at least one token.
        shares: Each in [0, 1]; 0 is the smallest ratio, 1 the largest.
    """
    upto = counts.cumsum(0)
    total = float(upto[-1])
    reach = torch.asinh(torch.tensor(WIDEST / SCALE, dtype=torch.float64))
    targets = torch.tensor([max(1.0, share * total) for share in shares], dtype=torch.float64)
    bins = torch.searchsorted(upto, targets - 1e-6).clamp(max=BINS - 1)
    position = bins.double() / (BINS - 1) * 2.0 - 1.0
    quantiles: list[float] = (torch.sinh(position * reach) * SCALE).exp().tolist()
    return quantiles
