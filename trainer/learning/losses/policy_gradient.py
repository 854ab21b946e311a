"""Policy-gradient losses per token.

All arrays have the shape ``[B, L]``: B sequences, L columns, padded on the right. In the formulas q
is the sampler's probability of a token, p the learner's, r = p / q = exp(log p − log q), and A the
advantage; a mean over a sequence is over its trained tokens. With a correction
(:mod:`vf.trainer.learning.losses.importance_sampling`) r = p / o, with the o that the batch began
with. Tokens that are not trained have loss 0 and gradient 0 whatever the arrays hold there,
infinities included. docs/losses.md has the formulas with their sources, and how the token losses
are summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from vf.trainer.learning.losses.custom_loss import load_loss
from vf.trainer.settings.config import TrainerArgs


@dataclass(frozen=True, slots=True)
class LossArrays:
    """What a loss is computed from.

    Attributes:
        logprobs: log p, float32 ``[B, L]``, with gradient.
        sampler_logprobs: log q, float32 ``[B, L]``.
        advantages: A, float32 ``[B, L]``.
        loss_mask: bool ``[B, L]``, True for the tokens that are trained.
        old_logprobs: log o, float32 ``[B, L]``, of the weights that the batch began with, where
            weights correct for the sampler; else None.
    """

    logprobs: torch.Tensor
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    loss_mask: torch.Tensor
    old_logprobs: torch.Tensor | None = None

    @property
    def log_ratio(self) -> torch.Tensor:
        """log p − log o, without an o log p − log q, float32 ``[B, L]``; 0 where not trained."""
        old = self.sampler_logprobs if self.old_logprobs is None else self.old_logprobs
        # Masked before the difference: the gradient of what is thrown away must not be inf · 0.
        return masked(self.logprobs, self.loss_mask) - masked(old, self.loss_mask)

    @property
    def log_weights(self) -> torch.Tensor:
        """log o − log q, float32 ``[B, L]``; 0 where nothing is trained, and without an o."""
        if self.old_logprobs is None:
            return torch.zeros_like(self.sampler_logprobs)
        mask = self.loss_mask
        return masked(self.old_logprobs, mask) - masked(self.sampler_logprobs, mask)


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The losses of tokens, and which of them were held back.

    Attributes:
        values: float32 ``[B, L]``; 0 where nothing is trained.
        clipped: bool ``[B, L]``, True where a clip changed the token's loss or its gradient.
        dropped: bool ``[B, L]``, True where the token's policy gradient was dropped.
    """

    values: torch.Tensor
    clipped: torch.Tensor | None = None
    dropped: torch.Tensor | None = None


class LossFn(Protocol):
    """A loss per token."""

    def __call__(self, arrays: LossArrays, /) -> TokenLosses | torch.Tensor:
        """Return the loss of each token; a bare tensor says that nothing was held back."""
        ...


def masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the values where the mask is True, and 0 elsewhere, where no gradient goes."""
    return torch.where(mask, values, torch.zeros_like(values))


def importance_sampling(arrays: LossArrays) -> TokenLosses:
    """−r·A: the policy gradient with the off-policy ratio. On-policy it is −A·∇log p."""
    return TokenLosses(masked(-arrays.log_ratio.exp() * arrays.advantages, arrays.loss_mask))


@dataclass(frozen=True, slots=True)
class Ppo:
    """−min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A) (PPO, arXiv:1707.06347, eq. 7).

    With a dual clip c, where A < 0: −max(min(...), c·A) (dual-clip PPO, arXiv:1912.09729).

    Attributes:
        clip_low: ε_low.
        clip_high: ε_high.
        dual_clip: c, above 1, or None.
    """

    clip_low: float
    clip_high: float
    dual_clip: float | None = None

    def __call__(self, arrays: LossArrays) -> TokenLosses:
        """Return the loss of each token."""
        ratio, advantages, mask = arrays.log_ratio.exp(), arrays.advantages, arrays.loss_mask
        plain = ratio * advantages
        bounded = torch.minimum(
            plain, ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * advantages
        )
        if self.dual_clip is not None:
            least = torch.maximum(bounded, self.dual_clip * advantages)
            bounded = torch.where(advantages < 0, least, bounded)
        return TokenLosses(masked(-bounded, mask), clipped=(bounded != plain) & mask)


@dataclass(frozen=True, slots=True)
class Cispo:
    """−sg(clip(r, 1 − ε_low, 1 + ε_high))·A·log p (MiniMax-M1, arXiv:2506.13585, eq. 4 and 5).

    The ratio is a weight without gradient (sg), so a clipped token still learns.

    Attributes:
        clip_low: ε_low; 1 gives the paper's, which has no lower bound.
        clip_high: ε_high.
    """

    clip_low: float
    clip_high: float

    def __call__(self, arrays: LossArrays) -> TokenLosses:
        """Return the loss of each token."""
        mask = arrays.loss_mask
        ratio = arrays.log_ratio.detach().exp()
        weight = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        losses = -weight * arrays.advantages * masked(arrays.logprobs, mask)
        return TokenLosses(masked(losses, mask), clipped=(weight != ratio) & mask)


@dataclass(frozen=True, slots=True)
class Dro:
    """−(A·log p − ½β(log p − log q)²) (DRO, arXiv:2405.19107, with A in place of r − V).

    Attributes:
        beta: β.
    """

    beta: float

    def __call__(self, arrays: LossArrays) -> TokenLosses:
        """Return the loss of each token."""
        mask = arrays.loss_mask
        gain = masked(arrays.logprobs, mask) * arrays.advantages
        return TokenLosses(masked(0.5 * self.beta * arrays.log_ratio.square() - gain, mask))


@dataclass(frozen=True, slots=True)
class Gspo:
    """−min(s·A, clip(s, 1 − ε_low, 1 + ε_high)·A), s = exp(mean(log p − log q)) of the sequence.

    In GSPO-token's form (arXiv:2507.18071, eq. 13 and 14): a token's s is sg(s)·p / sg(p), which
    has the value of s, and the gradient of GSPO (eq. 5) where A is the same in a whole sequence.
    A sequence is a branch. How much it weighs among those of its rollout is the normalisation's.

    Attributes:
        clip_low: ε_low.
        clip_high: ε_high.
    """

    clip_low: float
    clip_high: float

    def __call__(self, arrays: LossArrays) -> TokenLosses:
        """Return the loss of each token."""
        mask, log_ratio = arrays.loss_mask, arrays.log_ratio
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        mean = (log_ratio.sum(-1, keepdim=True) / count).detach()
        ratio = (mean + log_ratio - log_ratio.detach()).exp()
        plain = ratio * arrays.advantages
        bounded = torch.minimum(
            plain, ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * arrays.advantages
        )
        return TokenLosses(masked(-bounded, mask), clipped=(bounded != plain) & mask)


@dataclass(frozen=True, slots=True)
class Dppo:
    """−r·A, unless the token moved too far in A's direction, + τ·(log p − log q)².

    Too far: p − q > δ_high where A > 0, or p − q < −δ_low where A < 0 (DPPO with the binary total
    variation, arXiv:2602.04879). The quadratic holds for dropped tokens too, and leads them back.
    Both are about the distance to the sampler, also where a correction has r = p / o.

    Attributes:
        drop_low: δ_low, a probability.
        drop_high: δ_high, a probability.
        tau: τ.
    """

    drop_low: float
    drop_high: float
    tau: float

    def __call__(self, arrays: LossArrays) -> TokenLosses:
        """Return the loss of each token."""
        mask, advantages = arrays.loss_mask, arrays.advantages
        log_p, log_q = masked(arrays.logprobs, mask), masked(arrays.sampler_logprobs, mask)
        moved = log_p.detach().exp() - log_q.exp()
        dropped = ((advantages > 0) & (moved > self.drop_high)) | (
            (advantages < 0) & (moved < -self.drop_low)
        )
        dropped = dropped & mask
        policy = masked(arrays.log_ratio.exp() * advantages, mask & ~dropped)
        pull = self.tau * (log_p - log_q).square()
        return TokenLosses(masked(pull - policy, mask), dropped=dropped)


def build_loss(args: TrainerArgs) -> LossFn:
    """Return the loss that the settings ask for.

    Raises:
        ConfigError: If ``import_path`` leads to no function.
    """
    match args.loss_fn:
        case "importance_sampling":
            return importance_sampling
        case "ppo":
            return Ppo(args.clip_low, args.clip_high, args.dual_clip)
        case "cispo":
            return Cispo(args.clip_low, args.clip_high)
        case "dro":
            return Dro(args.dro_beta)
        case "gspo":
            return Gspo(args.sequence_clip_low, args.sequence_clip_high)
        case "dppo":
            return Dppo(args.drop_low, args.drop_high, args.dppo_tau)
        case "custom":
            return load_loss(args.import_path or "")
