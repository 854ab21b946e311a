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
        self._held: dict[int, dict[Context, None]] = {}  # by owner
        # Of each smallest block: the context there, and when it was last used: 0 for never or no
        # longer, infinite while a request is under way.
        self._at: list[Context | None] = [None] * (count * parts)
        self._used = np.zeros(count * parts)
        self._clock = 0

    def match(self, ids: list[int], owner: int = 0) -> tuple[Context | None, int]:
        """Return the context of an owner that begins most like ``ids``, and how many they share."""
        best, length = None, 0
        for context in self._held.get(owner, ()):
            if context.stale:
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
            self._mark(source)
            return source
        context = Context(ids[:length], 0, self._size(length + 1), owner=owner)
        if source is not None and length:
            context.family, context.alike = source.family, min(length, source.alike)
        self._take(context, self._allocate(context, source))
        self._held.setdefault(owner, {})[context] = None
        return context

    def grow(self, context: Context, length: int) -> None:
        """Give a busy context room for ``length`` tokens; its block may lie elsewhere then."""
        size = self._size(length)
        if size <= context.size:
            return
        self._leave(context)
        context.size = size
        self._take(context, self._allocate(context))

    def close(self, context: Context) -> None:
        """Keep a context for requests to come, in a block no larger than it needs."""
        self._clock += 1
        context.busy, context.used = False, self._clock
        if context.stale or not context.ids:
            self._drop(context)
        else:
            self._leave(context)
            context.size = self._size(len(context.ids))
            self._mark(context)
        if math.isfinite(self._idle):
            resting = [own for held in self._held.values() for own in held if not own.busy]
            if len(resting) > self._idle:
                self._drop(min(resting, key=lambda own: own.used))

    def forget(self) -> None:
        """Share nothing that is held now, for the weights have changed."""
        for context in [context for held in self._held.values() for context in held]:
            context.stale = True
            if not context.busy:
                self._drop(context)

    def _size(self, length: int) -> int:
        return 1 << (math.ceil(length / self.unit) - 1).bit_length()

    def _allocate(self, context: Context, spare: Context | None = None) -> int:
        """Return where there is a free block, or else one that has not been used for longest.

        ``spare`` is given away only if there is no other. There always is one: the others that are
        busy are fewer than there are blocks of the greatest size.
        """
        size = context.size
        cells = self._used
        if spare is not None:
            cells = cells.copy()
            cells[spare.start : spare.start + spare.size] = math.inf
        used = cells.reshape(-1, size).max(1)
        own, rest = divmod(context.start, size)
        if not rest and used[own] == 0:
            return context.start  # it need not move
        # Of those alike, one in the emptiest slot: it may grow there without being moved.
        slots = used.reshape(-1, self._parts // size).max(1).repeat(self._parts // size)
        alike = np.flatnonzero(used == used.min())
        best = int(alike[slots[alike].argmin()])
        return best * size if used[best] < math.inf else self._allocate(context)

    def _take(self, context: Context, start: int) -> None:
        """Let a context have its block from ``start`` on; what else is there is gone."""
        context.start = start
        for other in {*self._at[start : start + context.size]}:
            if other is not None:
                self._drop(other)
        self._mark(context)

    def _mark(self, context: Context) -> None:
        """Note whose a context's block is, and when it was used."""
        end = context.start + context.size
        self._at[context.start : end] = [context] * context.size
        self._used[context.start : end] = math.inf if context.busy else context.used

    def _leave(self, context: Context) -> None:
        """Free a context's block."""
        end = context.start + context.size
        self._at[context.start : end] = [None] * context.size
        self._used[context.start : end] = 0

    def _drop(self, context: Context) -> None:
        """Forget a context."""
        self._leave(context)
        held = self._held[context.owner]
        del held[context]
        if not held:
            del self._held[context.owner]


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
