"""Where each context's keys and values lie in the cache, and which contexts begin alike.

The cache is a run of slots, each with room for a context of the greatest length. A context holds
one block of a slot: a sixteenth of it, times a power of two, at a multiple of its own size (a buddy
system: Knowlton 1965, doi:10.1145/365628.365655). So a context is contiguous, those at the same
place in neighbouring slots are the rows of one tensor, and short contexts leave room for those that
no request uses at the moment.

Nothing here knows of tensors: whoever opens or grows a context copies what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PARTS = 16  # of the greatest length, in the smallest block
LEAST = 16  # tokens in the smallest block


@dataclass(slots=True, eq=False)
class Context:
    """Tokens whose keys and values are in the cache.

    Attributes:
        ids: The tokens.
        start: Where its block begins, in smallest blocks.
        size: Of its block, in smallest blocks.
        busy: Whether a request is under way on it.
        used: When it was last used; larger is later.
        stale: Whether some of it was computed with earlier weights.
        family: The same object for contexts that were copied from one another.
        alike: How many tokens it has from the first of its family; infinite for that one.
        owner: The number of the adapter that computed it; 0 for the model alone.
        states: What recurrent layers remember after so many of its tokens, where others can begin;
            None without such layers, where they can begin anywhere.
    """

    ids: list[int]
    start: int
    size: int
    busy: bool = True
    used: int = 0
    stale: bool = False
    family: object = field(default_factory=object)
    alike: float = math.inf
    owner: int = 0
    states: dict[int, Any] | None = None


class Contexts:
    """The contexts in a cache.

    Args:
        count: Contexts of the greatest length that there is room for; no more may be busy.
        longest: The greatest length, in tokens.
        idle: Contexts that are held without a request at most.

    Attributes:
        unit: Tokens in the smallest block.
        slot: Tokens in a slot.
        tokens: Tokens in the cache, less than ``count * (longest + 16)``.
    """

    def __init__(self, count: int, longest: int, idle: float = math.inf) -> None:
        parts = PARTS
        while parts > 1 and longest < parts * LEAST:
            parts //= 2
        self.unit = math.ceil(longest / parts)
        self.slot = parts * self.unit
        self.tokens = count * self.slot
        self._parts = parts
        self._idle = idle
        self._blocks = count * parts
        self._held: list[Context] = []
        self._clock = 0

    def match(self, ids: list[int], owner: int = 0) -> tuple[Context | None, int]:
        """Return the context of an owner that begins most like ``ids``, and how many they share."""
        best, length = None, 0
        for context in self._held:
            if context.stale or context.owner != owner:
                continue
            shared = common(context.ids, ids, length)
            if context.states is not None:
                shared = max((end for end in context.states if end <= shared), default=0)
            if shared > length:
                best, length = context, shared
        return best, length

    def open(self, ids: list[int], source: Context | None, length: int, owner: int = 0) -> Context:
        """Return a busy context that holds the first ``length`` of ``ids``.

        It is ``source`` where that holds just these and is not busy; else they are copied from it
        by the caller, immediately, because its block may be given away.
        """
        if source is not None and not source.busy and length == len(source.ids):
            source.busy = True
            return source
        context = Context(ids[:length], 0, self._size(length + 1), owner=owner)
        if source is not None and length:
            context.family, context.alike = source.family, min(length, source.alike)
        context.start = self._allocate(context, source)
        self._take(context)
        self._held.append(context)
        return context

    def grow(self, context: Context, length: int) -> None:
        """Give a busy context room for ``length`` tokens; its block may lie elsewhere then."""
        size = self._size(length)
        if size <= context.size:
            return
        context.size = size
        context.start = self._allocate(context)
        self._take(context)

    def close(self, context: Context) -> None:
        """Keep a context for requests to come, in a block no larger than it needs."""
        self._clock += 1
        context.busy, context.used = False, self._clock
        if context.stale or not context.ids:
            self._held.remove(context)
        else:
            context.size = self._size(len(context.ids))
        resting = [held for held in self._held if not held.busy]
        if len(resting) > self._idle:
            self._held.remove(min(resting, key=lambda held: held.used))

    def forget(self) -> None:
        """Share nothing that is held now, for the weights have changed."""
        for context in self._held:
            context.stale = True
        self._held = [context for context in self._held if context.busy]

    def _size(self, length: int) -> int:
        return 1 << (math.ceil(length / self.unit) - 1).bit_length()

    def _allocate(self, context: Context, spare: Context | None = None) -> int:
        """Return where there is a free block, or else one that has not been used for longest.

        ``spare`` is given away only if there is no other. There always is one: the others that are
        busy are fewer than there are blocks of the greatest size.
        """
        size = context.size
        used = np.zeros(self._blocks // size)
        blocks, times = [], []  # of contexts that are in one block each
        for held in self._held:
            if held is not context:
                last = math.inf if held.busy or held is spare else held.used
                first = held.start // size
                if held.size <= size:
                    blocks.append(first)
                    times.append(last)
                else:
                    used[first : first + held.size // size] = last
        np.maximum.at(used, blocks, times)
        own, rest = divmod(context.start, size)
        if not rest and used[own] == 0:
            return context.start  # it need not move
        # Of those alike, one in the emptiest slot: it may grow there without being moved.
        slots = used.reshape(-1, self._parts // size).max(1).repeat(self._parts // size)
        alike = np.flatnonzero(used == used.min())
        best = int(alike[slots[alike].argmin()])
        return best * size if used[best] < math.inf else self._allocate(context)

    def _take(self, context: Context) -> None:
        """Let a context have its block; what else is there is gone."""
        end = context.start + context.size
        self._held = [
            other
            for other in self._held
            if other is context or other.start >= end or other.start + other.size <= context.start
        ]


def most_shared(contexts: Sequence[Context]) -> tuple[int, set[Context]]:
    """Return with how many tokens contexts begin that were computed once and copied, and which.

    Those for which the number of tokens times that of contexts is greatest; none if no two have
    anything from one another.
    """
    families: dict[object, list[Context]] = {}
    for context in contexts:
        families.setdefault(context.family, []).append(context)
    best = 0
    members: list[Context] = []
    for family in families.values():
        family.sort(key=lambda context: context.alike, reverse=True)
        for count, context in enumerate(family[1:], 2):
            if context.alike * count > best * len(members):
                best, members = int(context.alike), family[:count]
    return best, {*members}


def common(one: list[int], other: list[int], least: int = 0) -> int:
    """Return how many tokens two lists share at their beginnings, or 0 if not over ``least``."""
    shorter = min(len(one), len(other))
    # Most lists that are compared differ early, or right after what is shared by all.
    if shorter <= least or one[least] != other[least] or one[:least] != other[:least]:
        return 0
    if one[:shorter] == other[:shorter]:
        return shorter
    low, high = least + 1, shorter  # so many are alike, and so many are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
