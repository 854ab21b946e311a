"""Next-token prediction on what the environment answered, beside the policy's loss.

What a tool returned is in the rollout already, so predicting it costs one more product with the
head. The mean cross-entropy on these tokens, times a coefficient, is added to the loss of the
sampled ones, as in ECHO (Shrivastava et al. 2026, arXiv:2605.24517).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def observed(mask: Sequence[int]) -> np.ndarray:
    """Return which tokens of a branch are observations: the context after what was sampled.

    A branch's prompt is none. Nor is the first token after a sampled one: where an answer was cut,
    it may be the end of the turn, and predicting that would teach the model to stop there.

    Args:
        mask: The branch's ``loss_mask``, of T tokens; its first entry is not read.

    Returns:
        bool ``[T]``.
    """
    sampled: np.ndarray = np.array(mask, dtype=bool)
    sampled[:1] = False  # nothing predicts it
    after = np.concatenate([sampled[:1], sampled[:-1]])
    observations: np.ndarray = np.logical_or.accumulate(sampled) & ~sampled & ~after
    return observations
