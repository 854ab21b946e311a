"""This process's share of what several worker processes may use together.

A bound on containers or connections is the user's, for the whole run. Each process that does a part
of the run keeps to its part of the bound, so that no process has to ask another one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """One part of several.

    Attributes:
        index: Which one, from 0.
        count: How many there are.

    Raises:
        ValueError: If there is no such part.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        """Check it."""
        if not 0 <= self.index < self.count:
            raise ValueError(f"there is no part {self.index} of {self.count}")

    def of(self, total: int) -> int:
        """Return this part of a whole number. All parts add up to it, and differ by 1 at most."""
        return total // self.count + (self.index < total % self.count)


_own = Share()


def take_share(index: int, count: int) -> None:
    """Let this process be one of several: for a worker, before it opens anything.

    Raises:
        ValueError: If there is no such part.
    """
    global _own
    _own = Share(index, count)


def own_share() -> Share:
    """Return this process's part: all of it, unless it is a worker."""
    return _own
