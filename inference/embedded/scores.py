"""Attention with sinks or capped scores, which torch's kernels do not compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_SCORES = 1 << 24  # in memory at once


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores become an output, beside their softmax.

    Attributes:
        sinks: ``[H]``, the logarithm of what is added to the denominator of a head's softmax.
        cap: What scores s are capped to, by cap · tanh(s / cap).
    """

    sinks: torch.Tensor | None
    cap: float | None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        *,
        rows: bool = False,
    ) -> torch.Tensor:
        """Attend with scores in memory, in float32 at least.

        Args:
            query: ``[B, K, G, D]``, a token for each of B requests; or ``[K, G, T, D]``.
            key: ``[B, K, S, D]``, or ``[K, G, S, D]``.
            value: The values, shaped alike.
            mask: Added to the scores.
            scale: Factor of the scores.
            rows: Whether it is the latter.
        """
        precision = torch.promote_types(query.dtype, torch.float32)
        q, k, v = (tensor.to(precision) for tensor in (query, key, value))
        scores = (q @ k.mT) * scale
        if self.cap is not None:
            scores = torch.tanh(scores / self.cap) * self.cap
        if mask is not None:
            scores = scores + mask
        total = scores.logsumexp(-1)
        if self.sinks is not None:
            heads = query.shape[:2] if rows else query.shape[1:3]
            sinks = self.sinks.to(precision).view(*heads, 1) if rows else self.sinks.view(heads)
            total = torch.logaddexp(total, sinks.to(precision))
        out: torch.Tensor = (scores - total[..., None]).exp() @ v
        return out.to(query.dtype)
