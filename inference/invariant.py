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

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import pad

ROWS = 32  # two vectors of the widest registers
TILE = 128
LEAST_ROWS, LEAST_KEYS = 8, 16
LOG2_E = math.log2(math.e)


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
    shared: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention's output and its log-sum-exp.

    Args:
        query: float32 ``[B, K, Q, D]``, Q rows of one key head.
        key: ``[B, K, S, D]``, from a sequence's first key on, or from the first behind ``shared``,
            without gaps.
        value: ``[B, K, S, E]``.
        mask: 0 or -inf, added to the scores ``[B, K, Q, S]``, to which it is broadcast; each row
            sees a key.
        scale: The factor of the scores.
        shared: Keys ``[K, F, D]`` and values ``[K, F, E]`` with which all B sequences begin, and
            which all rows see. F is a multiple of :data:`TILE`. The result has the same bits as if
            they were the first in ``key`` and ``value``, but they are read once for all.

    Returns:
        ``[B, K, Q, E]`` and ``[B, K, Q]``.
    """
    keys, first = key.shape[-2], 0 if shared is None else shared[0].shape[-2]
    query = query * (scale * LOG2_E)  # powers of 2 are several times as fast as those of e
    # Without weight behind the last key, so that every tile is summed up in one way.
    width = first + keys + -(first + keys) % TILE
    scores = query.new_full((*query.shape[:-1], width), -torch.inf)
    if shared is not None:
        scores[..., :first] = _product_with_all(query, shared[0].mT)
    if keys < LEAST_KEYS:
        key = pad(key, (0, 0, 0, LEAST_KEYS - keys))
    own = _product(query, key.mT)[..., :keys]
    scores[..., first : first + keys] = own if mask is None else own + mask
    most = scores.amax(-1, keepdim=True)
    weights = scores.sub_(most).exp2_()
    total = weights.view(*weights.shape[:-1], -1, TILE).sum(-1).cumsum(-1)[..., -1:]
    parts = []
    if shared is not None:
        for start in range(0, first, TILE):
            tile = slice(start, start + TILE)
            parts.append(_product_with_all(weights[..., tile], shared[1][:, tile]))
    own = _enough_rows(weights[..., first:])
    for start in range(0, keys, TILE):
        tile = slice(start, min(start + TILE, keys))
        parts.append((own[..., tile] @ value[..., tile, :])[..., : query.shape[-2], :])
    out, *others = parts
    for part in others:
        out = out.add_(part)
    return out / total, ((most + total.log2()) / LOG2_E)[..., 0]


def _enough_rows(left: torch.Tensor) -> torch.Tensor:
    """Return a left side of a product with so many rows that each has the bits of any number."""
    rows = left.shape[-2]
    return left if rows >= LEAST_ROWS else pad(left, (0, 0, 0, LEAST_ROWS - rows))


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (_enough_rows(left) @ right)[..., : left.shape[-2], :]


def _product_with_all(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply ``[B, K, Q, M]`` by ``[K, M, N]``: all B are rows of one product for each K."""
    batch, heads, rows, _ = left.shape
    flat = _product(left.transpose(0, 1).flatten(1, 2), right)
    return flat.view(heads, batch, rows, -1).transpose(0, 1)
