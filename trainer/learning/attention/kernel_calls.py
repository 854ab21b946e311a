"""Which queries attend to which keys in one call of the kernel.

Where every token sees its whole past, one call serves a :class:`Segment`: the queries of the
segment and of all its descendants, over the segment's keys, causal from the top left, so that
descendants see all of them. A token's partial results, one per ancestor, are merged.

Where tokens see a window, a chunk, or where a mask is needed anyway, one call serves a block of
neighbouring queries of one segment: its keys are the end of the path from the root to the block,
from the first that any of its queries sees. What no query of a block sees is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from vf.inference.attention_interface import Reach
from vf.trainer.learning.attention.kernels import empty_mask
from vf.trainer.learning.attention.prefix_tree import Segment

# Queries in a block. Of the keys of w + n positions that n queries with a window of w read, each
# sees w: small blocks waste less, large ones are fewer calls.
BLOCK = (64, 1024)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of the kernel.

    Attributes:
        queries: The queries' places in the layout.
        keys: Theirs, in the order of their positions: runs of places, from and to.
        merges: Whether the queries have a partial result already.
        begins: For a block, how many of its S keys each query, in order, does not see because they
            are too far back, int64 ``[Q]`` on the CPU; its last key is its last query. None for
            attention that is causal from the top left.
    """

    queries: slice
    keys: tuple[tuple[int, int], ...]
    merges: bool = False
    begins: torch.Tensor | None = None

    def key_indices(self, device: torch.device) -> slice | torch.Tensor:
        """Return the indices of the keys, as a slice or as int64 ``[S]``."""
        if len(self.keys) == 1:
            return slice(*self.keys[0])
        return torch.cat([torch.arange(*run, device=device) for run in self.keys])

    def mask(self, like: torch.Tensor) -> torch.Tensor | None:
        """Return what is added to the scores, ``[Q, S]`` in a tensor's dtype and device."""
        if self.begins is None:
            return None
        count, keys = len(self.begins), sum(end - start for start, end in self.keys)
        indices = torch.arange(keys, device=like.device)
        own = torch.arange(keys - count, keys, device=like.device)[:, None]
        hidden = (indices > own) | (indices < self.begins.to(like.device)[:, None])
        return empty_mask(count, keys, like).masked_fill_(hidden, -torch.inf)


def segment_calls(segments: Sequence[Segment]) -> tuple[Call, ...]:
    """Return the calls for tokens that see their whole past."""
    covered, calls = 0, []
    for segment in segments:
        merges = segment.start < covered  # it has ancestors
        covered = max(covered, segment.last)
        calls.append(
            Call(slice(segment.start, segment.last), ((segment.start, segment.end),), merges)
        )
    return tuple(calls)


@lru_cache(maxsize=8)  # layers of a kind share it, in both directions
def block_calls(
    segments: tuple[Segment, ...],
    reach: Reach | None,
    longest: int,
    most: int,
) -> tuple[Call, ...]:
    """Return the calls for blocks of queries.

    Args:
        segments: The segments of a prefix tree.
        reach: The range in which tokens see earlier ones; None if it is unbounded.
        longest: Tokens of the longest sequence.
        most: Queries in a block.
    """
    first = [0] * longest if reach is None else reach.first(longest).tolist()
    widest = max(index + 1 - begin for index, begin in enumerate(first))
    size = min(most, max(BLOCK[0], min(BLOCK[1], widest // 2)))
    calls = []
    path: list[tuple[Segment, int]] = []  # with the position of each one's first token
    for segment in segments:
        while path and path[-1][0].last <= segment.start:
            path.pop()
        position = path[-1][1] + path[-1][0].end - path[-1][0].start if path else 0
        path.append((segment, position))
        for start in range(segment.start, segment.end, size):
            end = min(start + size, segment.end)
            low, high = position + start - segment.start, position + end - segment.start
            keys = _runs(path, first[low], high)
            begins = torch.tensor(first[low:high]) - first[low]
            causal = low == first[low] and not begins.any()
            calls.append(Call(slice(start, end), keys, begins=None if causal else begins))
    return tuple(calls)


def _runs(path: Sequence[tuple[Segment, int]], low: int, high: int) -> tuple[tuple[int, int], ...]:
    """Return where the positions from low to high stand in the layout, as runs of places."""
    runs: list[tuple[int, int]] = []
    for segment, position in path:
        start = segment.start + max(0, low - position)
        end = min(segment.end, segment.start + high - position)
        if start >= end:
            continue
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, end))
    return tuple(runs)
