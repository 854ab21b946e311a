"""Policy-gradient losses per token.

All functions take flat tensors of shape ``[N]``, one entry per *trained* token: there is no mask
because tokens without loss are not in them. In the formulas q is the sampler's probability of
the token, p the learner's, r = p / q = exp(log p − log q), and A the advantage.
"""

from __future__ import annotations

from typing import Protocol

import torch


class LossFn(Protocol):
    """A loss per token."""

    def __call__(
        self, logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of each token.

        Args:
            logprobs: log p, float32 ``[N]``, with gradient.
            sampler_logprobs: log q, float32 ``[N]``.
            advantages: A, float32 ``[N]``.
        """
        ...


def importance_sampling(
    logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """−r·A: the unbiased off-policy policy gradient. On-policy its gradient is −A·∇log p."""
    return -(logprobs - sampler_logprobs).exp() * advantages


class Ppo:
    """−min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A) (PPO, arXiv:1707.06347, eq. 7).

    Args:
        clip_low: ε_low, the ratio's floor is 1 − ε_low.
        clip_high: ε_high, the ratio's ceiling is 1 + ε_high.
    """

    def __init__(self, clip_low: float, clip_high: float) -> None:
        self.clip_low = clip_low
        self.clip_high = clip_high

    def __call__(
        self, logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        """Return the clipped loss of each token; see :class:`LossFn`."""
        ratio = (logprobs - sampler_logprobs).exp()
        clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return -torch.minimum(ratio * advantages, clipped * advantages)
