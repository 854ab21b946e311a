"""Which queries attend to which keys in one call of the kernel.

Where every token sees its whole past, one call serves a :class:`Segment`: the queries of the
segment and of all its descendants, over the segment's keys, causal from the top left, so that
descendants see all of them. A token's partial results, one per ancestor, are merged.
Segments without descendants, which the completions of a prompt are, often are many and short: one
call serves those of about one length (:class:`Leaves`).

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
# Leaves in one call are at most so many tokens shorter than the longest. On a CPU a call for one
# alone costs as much as some 10,000 scores of a head.
PADDING = 16
LEAVES = 4096  # tokens in one call, of which there are copies meanwhile


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

    def take(self, states: torch.Tensor) -> torch.Tensor:
        """Return the queries' part of a tensor ``[K, G, T, ...]``."""
        return states[:, :, self.queries]

    def put(self, states: torch.Tensor, part: torch.Tensor) -> None:
        """Store the queries' part of a tensor ``[K, G, T, ...]``."""
        states[:, :, self.queries] = part

    def take_keys(self, states: torch.Tensor) -> torch.Tensor:
        """Return the keys' part of a tensor ``[K, 1, T, D]``."""
        return states[:, :, self._key_indices(states.device)]

    def add(self, states: torch.Tensor, part: torch.Tensor) -> None:
        """Add to the queries' part of a tensor ``[K, G, T, D]``."""
        states[:, :, self.queries] += part

    def add_to_keys(self, states: torch.Tensor, part: torch.Tensor) -> None:
        """Add to the keys' part of a tensor ``[K, 1, T, D]``."""
        keys = self._key_indices(states.device)
        if isinstance(keys, slice):
            states[:, :, keys] += part
        else:
            states.index_add_(2, keys, part)

    def real(self, grad: torch.Tensor) -> torch.Tensor:
        """Return a gradient of the queries' part, 0 behind the ends of leaves."""
        return grad

    def _key_indices(self, device: torch.device) -> slice | torch.Tensor:
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


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """One call of the kernel for B segments without descendants, each of which sees itself.

    They are padded at their ends to L tokens, which causal attention hides from those before. The
    padding is the last token again, so that no score of it is above that token's log-sum-exp. Their
    tokens are copied, so that the kernel has B·K key heads ``[B * K, G, L, D]``.

    Attributes:
        indices: int64 ``[B * K, L]``, for each token t of a key head k of the layout, t·K + k.
        kept: int64 ``[N]``, where these are tokens and not padding, by their place among all B·K·L;
            None if all are.
        merges: Whether the queries have a partial result already.
    """

    indices: torch.Tensor
    kept: torch.Tensor | None
    merges: bool

    def take(self, states: torch.Tensor) -> torch.Tensor:
        """Return the leaves' part of a tensor ``[K, G, T, ...]``."""
        rows = states.movedim(2, 0).flatten(0, 1)
        part = rows.index_select(0, self.indices.view(-1))
        return part.view(*self.indices.shape, *part.shape[1:]).transpose(1, 2)

    take_keys = take

    def put(self, states: torch.Tensor, part: torch.Tensor) -> None:
        """Store the leaves' part of a tensor ``[K, G, T, ...]``, whose tokens are outermost."""
        indices, rows = self._rows(part)
        states.movedim(2, 0).view(-1, *rows.shape[1:]).index_copy_(0, indices, rows)

    def add(self, states: torch.Tensor, part: torch.Tensor) -> None:
        """Add to the leaves' part of a tensor ``[K, G, T, D]``, whose tokens are outermost."""
        indices, rows = self._rows(part)
        states.movedim(2, 0).view(-1, *rows.shape[1:]).index_add_(0, indices, rows)

    add_to_keys = add

    def _rows(self, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the indices of a part's tokens, and what it holds of each, without padding."""
        indices, rows = self.indices.view(-1), part.transpose(1, 2).flatten(0, 1)
        if self.kept is None:
            return indices, rows
        return indices.index_select(0, self.kept), rows.index_select(0, self.kept)

    def real(self, grad: torch.Tensor) -> torch.Tensor:
        """Return a gradient of the leaves' part, 0 behind their ends."""
        if self.kept is None:
            return grad
        rows = grad.transpose(1, 2).flatten(0, 1)
        real = torch.zeros_like(rows).index_copy_(0, self.kept, rows.index_select(0, self.kept))
        return real.view(grad.transpose(1, 2).shape).transpose(1, 2)

    def mask(self, like: torch.Tensor) -> None:
        """Return None: attention is causal from the top left."""


AnyCall = Call | Leaves


@lru_cache(maxsize=8)  # layers of a kind share it, in both directions
def segment_calls(
    segments: tuple[Segment, ...], kv_heads: int, device: torch.device
) -> tuple[AnyCall, ...]:
    """Return the calls for tokens that see their whole past.

    Args:
        segments: The segments of a prefix tree.
        kv_heads: Key heads, K.
        device: The device of the queries.
    """
    covered, calls = 0, []
    leaves: dict[bool, list[Segment]] = {False: [], True: []}
    for segment in segments:
        merges = segment.start < covered  # it has ancestors
        covered = max(covered, segment.last)
        if segment.last == segment.end:
            leaves[merges].append(segment)
        else:
            calls.append(_segment_call(segment, merges))
    return *calls, *(
        _segment_call(run[0], merges) if len(run) == 1 else _leaves(run, merges, kv_heads, device)
        for merges, own in leaves.items()
        for run in _alike(own)
    )


def _segment_call(segment: Segment, merges: bool) -> Call:
    return Call(slice(segment.start, segment.last), ((segment.start, segment.end),), merges)


def _alike(leaves: Sequence[Segment]) -> list[list[Segment]]:
    """Return leaves in runs of about one length, each with its longest first."""
    runs: list[list[Segment]] = []
    for leaf in sorted(leaves, key=_length, reverse=True):
        longest = _length(runs[-1][0]) if runs else 0
        alike = runs and longest - _length(leaf) <= PADDING
        if alike and (len(runs[-1]) + 1) * longest <= LEAVES:
            runs[-1].append(leaf)
        else:
            runs.append([leaf])
    return runs


def _length(segment: Segment) -> int:
    return segment.end - segment.start


def _ends(segment: Segment) -> tuple[int, int]:
    return segment.start, segment.end


def _leaves(run: Sequence[Segment], merges: bool, kv_heads: int, device: torch.device) -> Leaves:
    starts, ends = (torch.tensor(own)[:, None, None] for own in zip(*map(_ends, run), strict=True))
    tokens = starts + torch.arange(_length(run[0]))
    heads = torch.arange(kv_heads)[:, None]
    indices = (tokens.minimum(ends - 1) * kv_heads + heads).flatten(0, 1).to(device)
    kept = (tokens < ends).expand(-1, kv_heads, -1).flatten().nonzero()[:, 0].to(device)
    return Leaves(indices, kept if len(kept) < indices.numel() else None, merges)


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
