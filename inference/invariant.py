"""Operations that give a token the same bits, whatever else is computed with it.

A product's library chooses its kernel, and with it the order of sums, by the shape. On a CPU, with
one thread and torch 2.13, a float32 product has the same bits in every row from 8 rows on, and in
every column from 12 on; sums over more than 192 terms are cut by their number. And elementwise
functions treat the numbers behind the last whole vector differently. So whoever runs a model pads
its tokens to a multiple of :data:`ROWS`, and attention has the sums of this module: over
:data:`TILE` keys at a time, from the first on. Keys that a token does not see add exactly 0.

The embedded engine and the trainer both use it with ``trainer.args.deterministic``. Why batches
matter: He and Thinking Machines Lab, "Defeating Nondeterminism in LLM Inference" (2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import pad

ROWS = 32  # two vectors of the widest registers
TILE = 128
LEAST_ROWS, LEAST_KEYS = 8, 16


def missing(count: int) -> int:
    """Return how many rows to add to so many."""
    return -count % ROWS


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread until the block ends: several share out rows by their number."""
    count = torch.get_num_threads()
    if count == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention's output and its log-sum-exp.

    Args:
        query: float32 ``[B, K, Q, D]``, Q rows of one key head.
        key: ``[B, K, S, D]``, from a sequence's first key on, without gaps.
        value: ``[B, K, S, E]``.
        mask: Added to the scores ``[B, K, Q, S]``, to which it is broadcast; each row sees a key.
        scale: Of the scores.

    Returns:
        ``[B, K, Q, E]`` and ``[B, K, Q]``.
    """
    rows, keys = query.shape[-2], key.shape[-2]
    query = query * scale
    if rows < LEAST_ROWS:
        query = pad(query, (0, 0, 0, LEAST_ROWS - rows))
    if keys < LEAST_KEYS:
        key = pad(key, (0, 0, 0, LEAST_KEYS - keys))
    scores = (query @ key.mT)[..., :rows, :keys]
    if mask is not None:
        scores = scores + mask
    most = scores.amax(-1, keepdim=True)
    # Zeros behind the last key, so that every tile is summed up in one way.
    weights = pad(scores - most, (0, -keys % TILE), value=-torch.inf).exp_()
    total = weights.view(*weights.shape[:-1], -1, TILE).sum(-1).cumsum(-1)[..., -1:]
    if rows < LEAST_ROWS:
        weights = pad(weights, (0, 0, 0, LEAST_ROWS - rows))
    out: torch.Tensor | None = None
    for start in range(0, keys, TILE):
        end = min(start + TILE, keys)
        part = weights[..., start:end] @ value[..., start:end, :]
        out = part if out is None else out.add_(part)
    assert out is not None
    return out[..., :rows, :] / total, (most + total.log())[..., 0]
