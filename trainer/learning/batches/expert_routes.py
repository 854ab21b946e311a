"""The experts that the engine sent tokens to, laid out as the learner computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vf.inference.routers import FREE
from vf.traces.trace import Branch


def expert_rows(branches: Sequence[Branch]) -> torch.Tensor | None:
    """Return the experts of branches side by side, padded on the right.

    Returns:
        int16 ``[B, L, W]``, ``FREE`` where they are not known; None if no branch has any.

    Raises:
        ValueError: If the branches are of different models.
    """
    widths = {len(row) for branch in branches for row in branch.experts[:1]}
    if not widths:
        return None
    if len(widths) > 1:
        raise ValueError(f"experts of different models, with {sorted(widths)} bytes for a token")
    longest = max(map(len, branches))
    out = torch.full((len(branches), longest, widths.pop() // 2), FREE, dtype=torch.int16)
    for row, branch in zip(out, branches, strict=True):
        numbers = np.frombuffer(b"".join(branch.experts), "<u2").astype(np.int16)
        recorded = torch.from_numpy(numbers).view(-1, row.shape[-1])
        row[: len(recorded)] = recorded
    return out


def packed_experts(rows: torch.Tensor | None, parts: Sequence[slice]) -> torch.Tensor | None:
    """Return the experts of the tokens of a prefix tree, int16 ``[T, W]``, in its order.

    Args:
        rows: The experts of its sequences, int16 ``[B, L, W]``; None if there are none.
        parts: The tokens that each sequence adds to those before it.
    """
    if rows is None:
        return None
    return torch.cat([row[part] for row, part in zip(rows, parts, strict=True)])


def experts_of_row(row: torch.Tensor) -> list[bytes]:
    """Return a branch's experts from int16 ``[T, W]``, up to the first that are not known."""
    recorded = int((row[:, 0] != FREE).cumprod(0).sum())
    return [experts.tobytes() for experts in row[:recorded].numpy().astype("<u2")]
