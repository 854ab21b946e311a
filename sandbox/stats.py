"""Counts of sources of sandboxes: of their pools, images and hosts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from vf.sandbox.spec import SandboxSpec

NAMED = 3  # images, in a line of progress


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counts of a pool's sandboxes.

    Attributes:
        size: The number that it keeps ready.
        ready: Ready now.
        starting: Being made now.
        in_use: In use by episodes now.
        closing: Being destroyed now.
        waiting: Episodes that wait for one: above 0, the pool is the bottleneck.
        made: Made so far.
        failed: Could not be made, or were dead before their first use.
        acquired: Handed out so far.
        waited: Seconds that all episodes together waited.
        longest_wait: The longest wait, seconds.
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
        """The total number of sandboxes now."""
        return self.ready + self.starting + self.in_use + self.closing

    @classmethod
    def sum(cls, stats: Iterable[PoolStats]) -> PoolStats:
        """Return the sum of several pools' counts."""
        every = list(stats)
        names = [field.name for field in fields(cls)]
        sums = {name: sum(getattr(stat, name) for stat in every) for name in names}
        longest = max((stat.longest_wait for stat in every), default=0.0)
        return cls(**sums | {"longest_wait": longest})


@dataclass(frozen=True, slots=True)
class ImageStats:
    """Counts of requested images.

    Attributes:
        requested: Number of images requested.
        ready: Number of images that are there.
        failed: Number of images that could not be built or pulled.
        busy: The images being built or pulled now, by the names of folders or images.
        built: Number of images built here; the others were there, or pulled.
        pulled: Number of images pulled.
        seconds: Total duration of builds and pulls.
    """

    requested: int = 0
    ready: int = 0
    failed: int = 0
    busy: tuple[str, ...] = ()
    built: int = 0
    pulled: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return one line for progress messages."""
        failed = f", {self.failed} failed" if self.failed else ""
        busy = ", ".join(self.busy[:NAMED])
        more = f" and {len(self.busy) - NAMED} more" if len(self.busy) > NAMED else ""
        now = f"; making {busy}{more}" if busy else ""
        return f"images: {self.ready} of {self.requested} ready{failed}{now}"


@dataclass(frozen=True, slots=True)
class HostStats:
    """Counts of a host.

    Attributes:
        containers: The counts of all of its pools together.
        specs: The counts of the pools that hold or make containers now.
        images: The counts of the images that specs name.
    """

    containers: PoolStats
    specs: dict[SandboxSpec, PoolStats]
    images: ImageStats
