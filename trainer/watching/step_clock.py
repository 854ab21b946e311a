"""Where a step's wall time goes: every second of it belongs to one part."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vf.environments.episode import Activity

PARTS = (
    *("generate", "environment", "reward", "train"),
    *("publish", "evaluate", "save", "outage", "wait"),
)
# What the trainer waits for while rollouts are under way, by what these do.
_PART_OF = {
    "model": "generate",
    "image": "environment",
    "reset": "environment",
    "step": "environment",
    "agent": "environment",
    "close": "environment",
    "release": "environment",
    "score": "reward",
    "server": "outage",
}


class StepClock:
    """Times training steps, one lap each.

    While the trainer waits for rollouts, each moment is shared among the parts in proportion to
    what the rollouts that it waits for do then. So where a single straggler holds up the step,
    all of the wait counts for what that one does. ``outage`` is a server that is down. What belongs
    to no part is ``wait``: rollouts without a place, and the trainer's own bookkeeping.

    Args:
        tell: Called with the name of each part that begins.
    """

    def __init__(self, tell: Callable[[str], None] = lambda part: None) -> None:
        self._tell = tell
        self._started = time.perf_counter()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._sampled: float | None = None
        self._shares: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time until the block ends for a part."""
        self._tell(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - started

    @contextmanager
    def waiting(self, look: Callable[[], Sequence[Activity]]) -> Iterator[None]:
        """Share the time until the block ends among what rollouts do; see :meth:`sample`.

        Args:
            look: Returns the activities of the awaited rollouts.
        """
        self._tell("generate")
        self._sampled, self._shares = time.perf_counter(), _shares(look())
        try:
            yield
        finally:
            self._count()
            self._sampled = None

    def sample(self, activities: Sequence[Activity]) -> None:
        """Note what rollouts do now; call it several times a second while waiting for them."""
        if self._sampled is not None:
            self._count()
            self._shares = _shares(activities)

    def lap(self) -> dict[str, float]:
        """Return seconds by part and in ``total`` since the last lap, and start the next one."""
        now = time.perf_counter()
        spent, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        spent["wait"] += max(0.0, now - self._started - sum(spent.values()))
        self._started = now
        return {**spent, "total": sum(spent.values())}

    def _count(self) -> None:
        if self._sampled is None:
            return
        now = time.perf_counter()
        for name, share in self._shares.items():
            self._seconds[name] += share * (now - self._sampled)
        self._sampled = now


def _shares(activities: Sequence[Activity]) -> dict[str, float]:
    """Return what each part has of the rollouts' attention; they sum up to 1."""
    counts = Counter(_PART_OF.get(activity.doing, "wait") for activity in activities)
    # While a rollout is at work, those without a place wait for that, and not for a place.
    idle = ("wait", "outage")  # a rollout passes by a server that is up in no time
    busy = {name: count for name, count in counts.items() if name not in idle} or counts
    total = sum(busy.values())
    return {name: count / total for name, count in busy.items()} if total else {"wait": 1.0}
