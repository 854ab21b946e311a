"""Importance weights for tokens that another policy sampled than the batch's first one.

q is the sampler's probability of a token, o the trainer's own with the weights that it had before
the batch's first optimizer step, and p the learner's now. A loss takes its ratio r = p / o, and is
multiplied by a weight without gradient, w = o / q, which is bounded. So the policy gradient's
variance is bounded whatever the engine computed otherwise, and however old its weights were, while
the loss' own clip sees only how far the learner went in this batch (decoupled PPO, Hilton et al.
2021, arXiv:2110.00641).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from vf.trainer.settings.config import TrainerArgs


@dataclass(frozen=True, slots=True)
class Corrected:
    """What :class:`Correction` makes of a micro-batch.

    Attributes:
        weights: v, float ``[B, L]``, without gradient.
        bounded: bool ``[B, L]``, True for the trained tokens whose weight was truncated or masked.
    """

    weights: torch.Tensor
    bounded: torch.Tensor


@dataclass(frozen=True, slots=True)
class Correction:
    """Bounded importance weights.

    - ``truncate``: min(w, C) (V-trace, Espeholt et al. 2018, arXiv:1802.01561, section 4.1; for the
      difference of engine and trainer, Yao et al. 2025, "Your efficient RL framework secretly
      brings you off-policy RL training").
    - ``mask``: w where c ≤ w ≤ C, else 0 (IcePop, Ling team 2025, arXiv:2510.18855).

    A sequence's weight is the product over its trained tokens, and each of them has it.

    Attributes:
        low: c; None to truncate.
        high: C.
        of_sequence: Whether weights are of sequences rather than tokens.
    """

    low: float | None
    high: float
    of_sequence: bool

    @classmethod
    def of(cls, args: TrainerArgs) -> Correction | None:
        """Return what the settings ask for; None if losses take their ratio to the sampler."""
        mode, high = args.importance_sampling_mode, args.importance_sampling_clip_max
        if mode is None or mode == "off":
            return None
        low = args.importance_sampling_clip_min
        if low is None:
            low = 1.0 / high
        return cls(low if mode.endswith("_mask") else None, high, mode.startswith("sequence_"))

    def __call__(self, log_weights: torch.Tensor, mask: torch.Tensor) -> Corrected:
        """Return bounded weights.

        Args:
            log_weights: log o − log q, float ``[B, L]``, 0 where nothing is trained.
            mask: bool ``[B, L]``, the trained tokens.
        """
        logs = log_weights.detach()
        if self.of_sequence:
            logs = logs.sum(-1, keepdim=True).expand_as(logs)
        most = math.log(self.high)
        bounded = logs > most
        weights = logs.clamp(max=most).exp()  # of the bound, so that nothing overflows
        if self.low is not None:
            bounded = bounded | (weights < self.low)
            weights = torch.where(bounded, torch.zeros_like(weights), weights)
        return Corrected(weights, bounded & mask)
