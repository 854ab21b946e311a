"""Which requests of a forward pass are attended to in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Query:
    """What one request has in a forward pass.

    Attributes:
        start: Where its context begins in the cache, in tokens.
        past: Tokens that the cache holds of it.
        count: New tokens.
        shared: How many tokens it begins with that all requests of the pass for which this is not
            0 begin with, computed once and copied. At most ``past``.
        ends: Behind which key each new token sees nothing; empty where that is itself.
    """

    start: int
    past: int
    count: int
    shared: int = 0
    ends: Sequence[int] = ()

    @property
    def positions(self) -> range:
        """The positions of its new tokens in the cache."""
        return range(self.start + self.past, self.start + self.past + self.count)


@dataclass(slots=True)
class Span:
    """Contexts at equal distances, whose requests are attended to in one call.

    Attributes:
        start: Where the first begins in the cache, in tokens.
        lengths: How many keys each request has; 1 for a place between that has no request here.
        width: The most of them.
    """

    start: int
    lengths: list[int]
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Requests with one token each that begin with the same tokens, or with none in particular.

    Attributes:
        count: Of the requests.
        shared: So many tokens; they are no part of the spans.
        spans: Their contexts.
        padded: Number of places of the spans.
        rows: Each request's place among them, int64 ``[count]``; None if there are no others.
    """

    count: int
    shared: int
    spans: list[Span]
    padded: int
    rows: torch.Tensor | None

    @classmethod
    def of(
        cls,
        queries: Sequence[Query],
        slot: int,
        call: int,
        device: torch.device,
        *,
        shared: int = 0,
    ) -> Group:
        """Make a group.

        A request is added to a span where that is less work than a call more, counted in keys:
        those between are read, too, and all as far as the longest.

        Args:
            queries: By their place within a slot, and then by slot; others make more spans.
            slot: Distance of the contexts in a span, in tokens.
            call: The keys that a call is worth.
            device: The rows' device.
            shared: Number of tokens that they begin with in common.
        """
        spans: list[Span] = []
        rows, total = [], 0
        for query in queries:
            start, length = query.start + shared, query.past + 1 - shared
            if spans:
                last = spans[-1]
                distance, rest = divmod(start - last.start, slot)
                between, width = distance - len(last.lengths), max(last.width, length)
                work = len(last.lengths) * last.width + length + call
                if not rest and between >= 0 and (distance + 1) * width <= work:
                    last.lengths += [1] * between + [length]
                    last.width = width
                    total += between + 1
                    rows.append(total - 1)
                    continue
            spans.append(Span(start, [length], length))
            total += 1
            rows.append(total - 1)
        index = torch.tensor(rows, device=device) if total > len(rows) else None
        return cls(len(rows), shared, spans, total, index)
