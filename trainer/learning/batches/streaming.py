"""Which groups make up which optimizer step, decided as they finish."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, islice

from vf.trainer.learning.batches.batch import Sample


def at_the_end(samples: Sequence[Sample]) -> bool:
    """Train on nothing before all groups are there."""
    return False


class StepBatch:
    """The groups of a step that have something to teach, split evenly over its optimizer steps.

    Of g groups the first of k optimizer steps takes ⌈g/k⌉. That is at least ⌈f/k⌉ with the f groups
    that have been found so far: so many may be trained on while others are still under way.

    Args:
        count: Optimizer steps, k.
        enough: Whether some samples are worth a forward and backward pass already.
    """

    def __init__(self, count: int, enough: Callable[[Sequence[Sample]], bool] = at_the_end) -> None:
        self._count = count
        self._enough = enough
        self._begun: dict[int, list[Sample]] = {}  # by the group's number
        self._waiting: dict[int, list[Sample]] = {}

    def add(self, number: int, samples: list[Sample]) -> list[Sample]:
        """Add a group, and return what is to be trained on now for the first optimizer step.

        Args:
            number: The group's.
            samples: Its own; a group without any is left out.
        """
        if not samples:
            return []
        self._waiting[number] = samples
        arrived = len(self._begun) + len(self._waiting)
        room = math.ceil(arrived / self._count) - len(self._begun)
        ready = dict(islice(self._waiting.items(), room))
        now = list(chain(*ready.values()))
        if not now or not self._enough(now):
            return []
        self._begun |= ready
        self._waiting = {key: own for key, own in self._waiting.items() if key not in ready}
        return now

    def shares(self) -> tuple[list[Sample], list[list[Sample]]]:
        """Return the samples of each optimizer step, once all groups have been added.

        Returns:
            What is left to be trained on for the first, and the whole samples of each; those of
            optimizer steps without any are left out.
        """
        later = [self._waiting[number] for number in sorted(self._waiting)]
        if not self._begun:
            split = [later[start :: self._count] for start in range(self._count)]
            left = split[0]
        else:
            arrived = len(self._begun) + len(later)
            room = math.ceil(arrived / self._count) - len(self._begun)
            left, rest = later[:room], later[room:]
            others = self._count - 1
            first = [*self._begun.values(), *left]
            split = [first, *(rest[start::others] for start in range(others))]
        return list(chain(*left)), [list(chain(*share)) for share in split if share]
