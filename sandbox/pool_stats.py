"""What pools of sandboxes are doing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool is doing.

    Attributes:
        size: How many it keeps ready.
        ready: How many are.
        starting: How many are being made.
        in_use: How many episodes have one.
        closing: How many are being destroyed.
        waiting: How many episodes wait for one: above 0, the pool is what they wait for.
        made: How many were made so far.
        failed: How many could not be made, or were dead before anybody used them.
        acquired: How many were handed out so far.
        waited: Seconds that all episodes together waited.
        longest_wait: The longest of those, seconds.
    """

    size: int = 0
    ready: int = 0
    starting: int = 0
    in_use: int = 0
    closing: int = 0
    waiting: int = 0
    made: int = 0
    failed: int = 0
    acquired: int = 0
    waited: float = 0.0
    longest_wait: float = 0.0

    @property
    def held(self) -> int:
        """How many there are in all."""
        return self.ready + self.starting + self.in_use + self.closing

    @classmethod
    def sum(cls, stats: Iterable[PoolStats]) -> PoolStats:
        """Return what several pools are doing together."""
        every = list(stats)
        names = [field.name for field in fields(cls)]
        sums = {name: sum(getattr(each, name) for each in every) for name in names}
        longest = max((each.longest_wait for each in every), default=0.0)
        return cls(**sums | {"longest_wait": longest})
