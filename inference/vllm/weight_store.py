"""The newest weights on disk, where servers read them."""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from vf.inference.engine import Weights
from vf.inference.vllm.adapter_formats import AdapterFormat, convert_adapter

_NAME = re.compile(r"\d+-\d+")  # the version, and how many were stored before


class StoredWeights(NamedTuple):
    """Weights on disk."""

    version: int
    folder: Path


class WeightStore:
    """Writes each version of the weights once, however many servers read it.

    A folder stays as long as it is the newest one or somebody holds it. Servers that come back are
    given weights in threads of their own, so holding and releasing are thread-safe; writing is for
    the trainer's thread.

    Args:
        weights: The weights to write.
        folder: The folder; the servers must be able to read it. What an earlier run wrote there is
            removed.
        form: The format of the adapter, if one is published.
    """

    def __init__(self, weights: Weights, folder: Path, form: AdapterFormat | None = None) -> None:
        self._weights = weights
        self._form = form
        self._folder = folder.absolute()
        self._count = 0
        self._newest: StoredWeights | None = None
        self._held: Counter[StoredWeights] = Counter()
        self._lock = threading.Lock()

    @property
    def newest(self) -> StoredWeights | None:
        """What was stored last, if anything was."""
        return self._newest

    def write(self, version: int, *, untied: bool = False) -> None:
        """Write the weights as they are now.

        Args:
            version: The version of the weights.
            untied: Write a head of its own, also where it is tied to the embedding.
        """
        if not self._count:
            for old in self._folder.glob("*-*"):
                if _NAME.fullmatch(old.name):
                    shutil.rmtree(old, ignore_errors=True)
        # A version that is stored again, after a resume say, still gets a fresh name.
        self._count += 1
        stored = StoredWeights(version, self._folder / f"{version}-{self._count}")
        self._weights.save(stored.folder, untied=untied)
        if self._form is not None:
            convert_adapter(stored.folder, self._form)
        with self._lock:
            before, self._newest = self._newest, stored
        if before is not None:
            self._remove_unused(before)

    def hold(self) -> StoredWeights:
        """Return the newest weights, which stay where they are until :meth:`release`."""
        with self._lock:
            assert self._newest is not None, "nothing was stored yet"
            self._held[self._newest] += 1
            return self._newest

    def release(self, stored: StoredWeights) -> None:
        """Hold weights no longer."""
        with self._lock:
            self._held[stored] -= 1
        self._remove_unused(stored)

    @contextmanager
    def held(self) -> Iterator[StoredWeights]:
        """Hold the newest weights until the block ends."""
        stored = self.hold()
        try:
            yield stored
        finally:
            self.release(stored)

    def _remove_unused(self, stored: StoredWeights) -> None:
        with self._lock:
            if stored == self._newest or self._held[stored]:
                return
            del self._held[stored]
        shutil.rmtree(stored.folder, ignore_errors=True)
