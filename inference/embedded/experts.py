"""The experts of every token in the cache, for a trainer that is to use the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from vf.inference.routers import Recorder


class ExpertsStore:
    """What the routers chose, by the place of a token in the cache; see KeyValueCache.

    Args:
        model: A causal language model of transformers' with experts.
        places: How many the cache has.

    Raises:
        ValueError: The model has no experts.
    """

    def __init__(self, model: Any, places: int) -> None:
        self._recorder = Recorder(model)
        if not self._recorder.layers:
            raise ValueError("the model has no experts, so none can be recorded")
        self._places = places
        self._held: np.ndarray | None = None
        self.watching = self._recorder.watching

    def write(self, places: list[int]) -> None:
        """Keep what was chosen in the last pass, for its tokens at these places."""
        found = self._recorder.take(len(places))
        if self._held is None:
            self._held = np.zeros((self._places, found.shape[1]), found.dtype)
        self._held[places] = found

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy tokens to another place; the two may overlap."""
        if self._held is not None:
            self._held[target : target + count] = self._held[source : source + count].copy()

    def read(self, start: int, end: int) -> list[bytes]:
        """Return the experts of the tokens from one place to another, a token each."""
        assert self._held is not None
        return [row.tobytes() for row in self._held[start:end]]
