"""The experts of every token in the cache, for a trainer that is to use the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from vf.inference.routers import Recorder


class ExpertsStore:
    """What the routers chose, by the place of a token in the cache; see KeyValueCache.

    Args:
        model: A causal language model of transformers' with experts.
        positions: Number of tokens in the cache.

    Raises:
        ValueError: If the model has no experts.
    """

    def __init__(self, model: Any, positions: int) -> None:
        self._recorder = Recorder(model)
        if not self._recorder.layers:
            raise ValueError("the model has no experts, so none can be recorded")
        self._positions = positions
        self._held: np.ndarray | None = None
        self.watching = self._recorder.watching

    def write(self, positions: list[int]) -> None:
        """Keep what was chosen in the last pass, for its tokens at these positions."""
        experts = self._recorder.take(len(positions))
        if self._held is None:
            self._held = np.zeros((self._positions, experts.shape[1]), experts.dtype)
        self._held[positions] = experts

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy tokens to another place; the two may overlap."""
        if self._held is not None:
            self._held[target : target + count] = self._held[source : source + count].copy()

    def read(self, start: int, end: int) -> list[bytes]:
        """Return the experts of the tokens from one place to another, a token each."""
        assert self._held is not None
        return [row.tobytes() for row in self._held[start:end]]
