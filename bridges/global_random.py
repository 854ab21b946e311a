"""Keeping libraries that draw from Python's and NumPy's global generators apart.

Such a library seeds what the whole process draws from, and two episodes at once would draw from
one another's numbers. Here each has a state of its own, put in place while the library runs and
taken away again: an episode is the same whatever runs beside it, and nobody else notices.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_running = threading.RLock()


class GlobalRandom:
    """The global generators as one episode sees them.

    Args:
        seed: Where they begin; a non-negative whole number.
    """

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = None
        self._seed = seed % 2**32

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put them in place for the block; one block runs at a time, in whatever thread."""
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
