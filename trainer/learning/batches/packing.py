"""From samples to micro-batches without padding, in which shared prefixes appear once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from vf.trainer.learning.attention.prefix_tree import build_tree, sort
from vf.trainer.learning.batches.batch import MicroBatch, Sample, collate, observing
from vf.trainer.learning.batches.expert_routes import packed_experts
from vf.trainer.learning.batches.observations import observed

T = TypeVar("T", bound=Sized)

BATCH_COST = 64  # what a micro-batch costs beside its tokens, in tokens' worth of work
GRAINS = (float("inf"), 1.0, 0.5, 0.25)  # pieces for the ranks, as parts of a fair share


@dataclass(frozen=True, slots=True)
class Row:
    """A sample in its place among sorted ones.

    Attributes:
        sample: The sample.
        shared: How many tokens it shares with the row before.
    """

    sample: Sample
    shared: int

    @property
    def new(self) -> int:
        """Tokens that it adds to the rows before it."""
        return len(self.sample) - self.shared


def rows_of(samples: Sequence[Sample], *, share: bool) -> list[Row]:
    """Sort samples so that those that begin alike are neighbours; without ``share`` none do."""
    if not share:
        return [Row(sample, 0) for sample in samples]
    order, shared = sort([sample.branch.token_ids for sample in samples], attached(samples))
    return [Row(samples[index], common) for index, common in zip(order, shared, strict=True)]


def attached(samples: Sequence[Sample]) -> list[list[int]]:
    """Return numbers, one for each token, that differ where tokens cannot be shared.

    A token is computed with the experts that the engine sent it to, and its prediction is compared
    with a teacher's distribution, which depends on what the teacher alone has read. Whatever else a
    sample attaches to its tokens is read for each sample by itself.

    Returns:
        Lists as long as the samples' branches; nothing if no sample has experts or a teacher's
        likeliest tokens.
    """
    if not any(sample.branch.experts or sample.likeliest is not None for sample in samples):
        return []
    numbers: dict[tuple[bytes, bytes], int] = {(b"", b""): 0}
    lists = []
    for sample in samples:
        length, mask = len(sample), sample.branch.loss_mask
        experts = [*sample.branch.experts[:length]]
        experts += [b""] * (length - len(experts))
        teacher = [b""] * length
        if sample.likeliest is not None:
            predicting = (index for index in range(length - 1) if mask[index + 1])
            for index, distribution in zip(predicting, sample.likeliest.rows(), strict=True):
                teacher[index] = distribution
        keys = zip(experts, teacher, strict=True)
        lists.append([numbers.setdefault(key, len(numbers)) for key in keys])
    return lists


def cost(rows: Sequence[Row]) -> int:
    """Return how many tokens a run of rows is, each shared one counted once."""
    return rows[0].shared + sum(row.new for row in rows) if rows else 0


def pack(
    samples: Sequence[Sample],
    max_tokens: int,
    max_rows: int | None = None,
    *,
    share: bool = True,
    apart: bool = False,
) -> list[MicroBatch]:
    """Pack samples into micro-batches, each with its prefix tree.

    Samples are cut into runs of neighbours so that the fewest tokens in all are computed: usually
    between groups, and within one where it is larger than the budget.

    Args:
        samples: The samples to train on.
        max_tokens: The budget, in tokens that are computed; a longer sample is alone.
        max_rows: Most samples in one micro-batch.
        share: Whether samples that begin alike share their beginning.
        apart: Whether the budget counts what samples share once for each of them, because some
            layers compute it so.
    """
    rows = rows_of(samples, share=share)
    batches = []
    for low, high in _runs(rows, max_tokens, max_rows or len(rows), apart=apart):
        part = [row.sample for row in rows[low:high]]
        tree = build_tree(
            [sample.branch.token_ids for sample in part],
            [sample.branch.loss_mask for sample in part],
            [row.shared for row in rows[low:high]],
            [observed(sample.branch.loss_mask) & observing(sample) for sample in part],
        )
        batch = collate(part)
        added = [slice(row.shared, len(row.sample)) for row in rows[low:high]]
        added[0] = slice(0, added[0].stop)
        tree = replace(tree, experts=packed_experts(batch.experts, added))
        batches.append(replace(batch, tree=tree))
    return batches


def _runs(
    rows: Sequence[Row], max_tokens: int, max_rows: int, *, apart: bool
) -> list[tuple[int, int]]:
    """Cut rows into runs under the limits, at the least total cost (dynamic programming).

    A run costs what its first row has and what the rows behind it add. So the best start for all
    ends is kept at the front of a queue (a sliding window's minimum), and rows are read once.
    """
    lengths = [len(row.sample) for row in rows]
    added = [0, *accumulate(row.new for row in rows)]
    whole = [0, *accumulate(lengths)]
    best = [0]  # of the first so many rows
    costs: list[int] = []  # of all up to a run from a row on, less what rows up to there add
    begins = []
    first = 0  # start of the longest run that is within the limits
    starts: deque[int] = deque()  # from there on, the least costly first
    for end in range(1, len(rows) + 1):
        start = end - 1
        costs.append(best[start] + lengths[start] - added[end])
        while starts and costs[starts[-1]] >= costs[start]:
            starts.pop()
        starts.append(start)
        while first < start:
            size = lengths[first] + added[end] - added[first + 1]
            tokens = whole[end] - whole[first] if apart else size
            if tokens <= max_tokens and end - first <= max_rows:
                break
            first += 1
        while starts[0] < first:
            starts.popleft()
        best.append(costs[starts[0]] + added[end] + BATCH_COST)
        begins.append(starts[0])
    runs, end = [], len(rows)
    while end:
        runs.append((begins[end - 1], end))
        end = begins[end - 1]
    return runs[::-1]


def balance(
    pieces: Sequence[T], loads: Sequence[int], cost: Callable[[T], int] = len
) -> list[list[T]]:
    """Split samples, or other pieces of work, into one share per rank, nearly equal in tokens.

    The longest are assigned first, each to the rank with the fewest tokens so far.

    Args:
        pieces: The work.
        loads: Tokens that each rank has already.
        cost: The number of tokens of a piece.
    """
    shares: list[list[T]] = [[] for _ in loads]
    tokens = list(loads)
    for piece in sorted(pieces, key=cost, reverse=True):
        rank = min(range(len(tokens)), key=tokens.__getitem__)
        shares[rank].append(piece)
        tokens[rank] += cost(piece)
    return shares


def share_out(
    samples: Sequence[Sample], loads: list[int], *, share: bool = True
) -> list[list[Sample]]:
    """Split samples into one share per rank, so that all ranks have nearly equal tokens to compute.

    What begins alike stays together, unless the slowest rank gains by a split.

    Args:
        samples: The work.
        loads: Tokens that each rank has got in the optimizer step so far; those of the samples are
            added in place.
        share: Whether samples that begin alike share their beginning.

    Returns:
        As many lists as ranks; some are empty where there are fewer samples.
    """
    if len(loads) == 1:
        return [list(samples)]
    rows = rows_of(samples, share=share)
    fair = cost(rows) / len(loads)
    splits = [balance(_pieces(rows, fair * grain), loads, cost) for grain in GRAINS]
    totals = [
        [load + sum(map(cost, pieces)) for load, pieces in zip(loads, split, strict=True)]
        for split in splits
    ]
    best = min(range(len(splits)), key=lambda index: max(totals[index]))
    loads[:] = totals[best]
    return [[row.sample for piece in pieces for row in piece] for pieces in splits[best]]


def fills(
    samples: Sequence[Sample], ranks: int, max_tokens: int, max_rows: int | None, *, share: bool
) -> bool:
    """Return whether samples are enough for a full micro-batch on every rank.

    Args:
        samples: The work.
        ranks: The number of ranks.
        max_tokens: The budget of a micro-batch, in tokens that are computed.
        max_rows: Most samples in one micro-batch.
        share: Whether samples that begin alike share their beginning.
    """
    if max_rows is not None and len(samples) >= ranks * max_rows:
        return True
    return cost(rows_of(samples, share=share)) >= ranks * max_tokens


def _pieces(rows: Sequence[Row], limit: float) -> list[list[Row]]:
    """Cut rows where nothing is shared, and wherever a piece would grow over the limit."""
    pieces: list[list[Row]] = []
    size = 0
    for row in rows:
        size += row.new
        if row.shared and size <= limit:
            pieces[-1].append(row)
        else:
            pieces.append([row])
            size = len(row.sample)
    return pieces
