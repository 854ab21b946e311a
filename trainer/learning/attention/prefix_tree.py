"""Token sequences with common prefixes, laid out so that each prefix appears once.

Sequences sorted by their tokens are the leaves of a prefix tree in depth-first order. Written down
in that order, each sequence adds only the tokens that it does not share with the one before it, and
all the continuations of a segment stand right behind it:

    prompt | completion 1 | completion 2 | ...

A token attends to its own segment up to itself, and to all of its ancestors' tokens. Positions
count along the sequence, not along the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

# When sharing pays, in tokens' worth of work. Each shared segment costs two more calls of the
# attention per layer, and every token behind it one more merge of partial results: on a CPU, with
# 20 M parameters, 0 to 5 % of a token, and less with more parameters.
SEGMENT_COST = 16
MERGE_COST = 0.02
ALIKE = 0.75  # rows of one group are at least so long, as parts of its longest


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens without a fork in it.

    Attributes:
        start: The first token's place in the layout.
        end: The place behind its last token.
        last: The place behind the last of its descendants, which stand at ``end`` and after.
    """

    start: int
    end: int
    last: int


def _nothing() -> torch.Tensor:
    return torch.zeros(0, dtype=torch.long)


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Sequences in one layout of T tokens, with P tokens that predict N trained ones.

    Attributes:
        token_ids: int64 ``[T]``.
        position_ids: int64 ``[T]``, each token's position in its sequence.
        segments: Ancestors before descendants.
        predictors: int64 ``[P]``, the places whose prediction any sequence trains.
        rows: int64 ``[N]``, for each trained token in row-major order of the sequences, which of
            the ``predictors`` it is predicted at.
        longest: Tokens of the longest sequence.
        rows_apart: int64 ``[B, L]`` each, the places of all tokens of B sequences of about one
            length, where sequences must be computed apart; behind a row's end, that of its last.
        homes: int64 ``[T]``, where a token is in these, flattened one behind the other.
        experts: int16 ``[T, W]``, where the engine sent each token; None if that is not known.
        observers: int64 ``[P']``, the places whose prediction of an observation carries loss.
        observed_rows: int64 ``[M]``, for each such observation, as ``rows``, which of these it is
            predicted at.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    segments: tuple[Segment, ...]
    predictors: torch.Tensor
    rows: torch.Tensor
    longest: int
    rows_apart: tuple[torch.Tensor, ...] = ()
    homes: torch.Tensor = field(default_factory=_nothing)
    experts: torch.Tensor | None = None
    observers: torch.Tensor = field(default_factory=_nothing)
    observed_rows: torch.Tensor = field(default_factory=_nothing)

    def __len__(self) -> int:
        return len(self.token_ids)

    def to(self, device: torch.device) -> PrefixTree:
        """Return a copy on a device."""
        names = ["token_ids", "position_ids", "predictors", "rows", "homes"]
        names += ["observers", "observed_rows"]
        moved = {name: getattr(self, name).to(device) for name in names}
        if self.experts is not None:
            moved["experts"] = self.experts.to(device)
        return replace(self, **moved, rows_apart=tuple(rows.to(device) for rows in self.rows_apart))


def sort(
    sequences: Sequence[Sequence[int]], attached: Sequence[Sequence[int]] = ()
) -> tuple[list[int], list[int]]:
    """Sort sequences so that those that begin alike are neighbours.

    Args:
        sequences: Token ids.
        attached: A number for each token, which two tokens must have in common to be shared; empty
            if they need not.

    Returns:
        The order, as indices; and how many tokens each sequence in it shares with the one before,
        as far as sharing them pays.
    """
    arrays = [np.asarray(ids, dtype=">u4") for ids in sequences]
    if attached:
        arrays = [
            (ids.astype(">u8") << 32) | np.asarray(numbers, dtype=">u8")
            for ids, numbers in zip(arrays, attached, strict=True)
        ]
    keys = [array.tobytes() for array in arrays]  # big-endian: they sort as the numbers do
    order = sorted(range(len(keys)), key=keys.__getitem__)
    common = [0] * len(order)
    for index in range(1, len(order)):
        common[index] = _common(arrays[order[index - 1]], arrays[order[index]])
    return order, worthwhile([len(sequences[index]) for index in order], common)


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """Return how many tokens two sequences begin with alike."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


def worthwhile(lengths: Sequence[int], shared: Sequence[int]) -> list[int]:
    """Leave out forks that cost more than they save.

    Args:
        lengths: Tokens of each sorted sequence.
        shared: The number of tokens that each shares with the one before.

    Returns:
        ``shared``, lowered to the nearest fork that pays.
    """
    kept = [0] * len(shared)
    todo = [(0, len(shared), 0)]  # sequences low..high share `depth` tokens already
    while todo:
        low, high, depth = todo.pop()
        if high - low < 2:
            continue
        common = min(shared[low + 1 : high])
        behind = sum(lengths[low:high]) - (high - low) * common
        if (high - low - 1) * (common - depth) > SEGMENT_COST + MERGE_COST * behind:
            depth = common
        forks = [index for index in range(low + 1, high) if shared[index] == common]
        for fork in forks:
            kept[fork] = depth
        todo += [(a, b, depth) for a, b in zip([low, *forks], [*forks, high], strict=True)]
    return kept


def build_tree(
    sequences: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
    shared: Sequence[int],
    observed: Sequence[np.ndarray] = (),
) -> PrefixTree:
    """Lay sorted sequences out.

    Args:
        sequences: Token ids, B sequences.
        masks: 1 where a token is trained; the first of a sequence never is.
        shared: The number of tokens that each shares with the one before; the first is not read.
        observed: bool, of each sequence's tokens, True for observations that carry loss; nothing
            if none does.
    """
    shared = [0, *shared[1:]]
    lengths = [len(ids) for ids in sequences]
    new = [ids[common:] for ids, common in zip(sequences, shared, strict=True)]
    ends = np.cumsum([len(ids) for ids in new]).tolist()
    starts = [0, *ends]
    path: np.ndarray = np.zeros(0, dtype=np.int64)
    every = []
    for start, common, length in zip(starts, shared, lengths, strict=False):
        own = np.arange(start, start + length - common)
        path = np.concatenate([path[:common], own])  # the rest is in the one before
        every.append(path)
    predictors, rows = _predicting(every, masks)
    observers, observed_rows = _predicting(every, observed) if observed else (_nothing(),) * 2
    rows_apart, homes = _apart(every, starts[-1])
    return PrefixTree(
        token_ids=torch.tensor([token for ids in new for token in ids]),
        position_ids=torch.cat([torch.arange(a, b) for a, b in zip(shared, lengths, strict=True)]),
        segments=_segments(lengths, shared, starts),
        predictors=predictors,
        rows=rows,
        longest=max(lengths),
        rows_apart=rows_apart,
        homes=homes,
        observers=observers,
        observed_rows=observed_rows,
    )


def _predicting(
    every: Sequence[np.ndarray], masks: Sequence[Sequence[int] | np.ndarray]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that predict masked tokens, and for each of these which of them does."""
    predictors = [
        indices[:-1][np.asarray(mask[1:], dtype=bool)]
        for indices, mask in zip(every, masks, strict=True)
    ]
    unique, rows = np.unique(np.concatenate(predictors), return_inverse=True)
    return torch.from_numpy(unique), torch.from_numpy(rows.reshape(-1))


def _apart(
    paths: Sequence[np.ndarray], tokens: int
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Return :class:`PrefixTree`'s ``rows_apart`` and ``homes``, from each sequence's indices."""
    groups: list[list[np.ndarray]] = []
    for row in sorted(paths, key=len, reverse=True):
        if groups and len(row) >= ALIKE * len(groups[-1][0]):
            groups[-1].append(row)
        else:
            groups.append([row])
    homes: np.ndarray = np.zeros(tokens, dtype=np.int64)
    tables, begin = [], 0
    for group in groups:
        longest = len(group[0])
        tables.append(np.stack([np.pad(row, (0, longest - len(row)), "edge") for row in group]))
        for row in group:
            homes[row] = np.arange(begin, begin + len(row))
            begin += longest
    return tuple(map(torch.from_numpy, tables)), torch.from_numpy(homes)


def _segments(
    lengths: Sequence[int], shared: Sequence[int], starts: Sequence[int]
) -> tuple[Segment, ...]:
    """Cut what each sequence adds at the depths where later ones leave it."""
    segments = []
    for row, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        last: dict[int, int] = {}  # by depth: where the descendants of what ends there end
        depth = length
        for later in range(row + 1, len(lengths)):
            if shared[later] < depth:
                last[depth] = starts[later]
                depth = shared[later]
            if depth <= common:
                break
        else:
            last[depth] = starts[-1]
        begin, offset = common, starts[row] - common
        for end in sorted(depth for depth in last if depth > common):
            segments.append(Segment(offset + begin, offset + end, last[end]))
            begin = end
    return tuple(segments)
