"""Shared by other libraries' games: task seeds, outcomes, and global random numbers."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vf.environments.environment import Split
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed

_SEEDS = 2**30


def game_seeds(name: str, seed: int, split: Split, count: int) -> Iterator[int]:
    """Yield the seeds of a split's games: even ones for training, odd ones for evaluation.

    Args:
        name: The library's name; its seeds are its own.
        seed: Seed of the environment.
        split: The split.
        count: The number of games.
    """
    first = derive_seed(seed, name) % _SEEDS
    for index in range(count):
        yield 2 * ((first + index) % _SEEDS) + (split == "eval")


def check_returns(name: str, returns: Sequence[float]) -> tuple[float, float]:
    """Return the returns worth 0 and 1 as numbers.

    Raises:
        ConfigError: If they are not two numbers in ascending order; names the environment.
    """
    if len(returns) != 2 or not float(returns[0]) < float(returns[1]):
        raise ConfigError(f"{name}: returns must be (worst, best), got {returns!r}")
    return float(returns[0]), float(returns[1])


def share_of(value: float, returns: tuple[float, float]) -> float:
    """Return a value as a share of the way from the worst return to the best, in [0, 1]."""
    worst, best = returns
    return min(1.0, max(0.0, (value - worst) / (best - worst)))


_running = threading.RLock()


class GlobalRandom:
    """Python's and NumPy's global random generators, as one episode sees them.

    Libraries that draw from these generators seed them for the whole process, so concurrent
    episodes would draw from one another's numbers. Here each has its own state, put in place while
    the library runs and removed again: an episode does not depend on what runs beside it.

    Args:
        seed: The initial seed, a non-negative integer.
    """

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = None
        self._seed = seed % 2**32

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the state in place for the block; one block runs at a time, in any thread."""
        with _running:
            numpy = sys.modules.get("numpy")
            theirs = random.getstate()
            numpys = None if numpy is None else numpy.random.get_state()
            random.setstate(self._python)
            if numpy is not None and self._numpy is None:
                self._numpy = numpy.random.RandomState(self._seed).get_state()
            if numpy is not None:
                numpy.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python = random.getstate()
                random.setstate(theirs)
                if numpy is not None:
                    self._numpy = numpy.random.get_state()
                    numpy.random.set_state(numpys)
