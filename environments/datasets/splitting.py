"""Which split a row belongs to, and a shuffle that needs little memory."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TypeVar

from vf.runtime.seeding import derive_seed

Item = TypeVar("Item")
_SEEDS = 2**63  # derive_seed's range


def held_out(text: str, eval_share: float) -> bool:
    """Return whether what is known by this text belongs to the eval split.

    A pure function of the text, case, white space and Unicode's compatibility forms aside. So
    rows that say the same are on one side, adding rows moves none, and a larger share only moves
    rows out of the train split.

    Args:
        text: What must not be in both splits; usually the prompt.
        eval_share: Share of the eval split, in [0, 1].
    """
    return derive_seed("eval split", same_problem(text)) / _SEEDS < eval_share


def same_problem(text: str) -> str:
    """Return the text without what makes no other problem of it."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def shuffled(items: Iterable[Item], seed: int, buffer: int) -> Iterator[Item]:
    """Yield the items in a random order, holding no more than ``buffer`` of them.

    Whatever fits into the buffer is shuffled evenly (Fisher and Yates); of more, each item is
    drawn from the ``buffer`` that have been read and not yet yielded.

    Args:
        items: Read as they are needed.
        seed: The same seed gives the same order.
        buffer: How many to hold, at least 1.
    """
    rng = random.Random(seed)
    held: list[Item] = []
    for item in items:
        if len(held) < buffer:
            held.append(item)
            continue
        place = rng.randrange(buffer)
        drawn, held[place] = held[place], item
        yield drawn
    rng.shuffle(held)
    yield from held
