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

_NAME = re.compile(r"\d+-\d+")  # the version, and how many were written before


class Written(NamedTuple):
    """Weights on disk."""

    version: int
    folder: Path


class Shelf:
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
        self._newest: Written | None = None
        self._held: Counter[Written] = Counter()
        self._lock = threading.Lock()

    @property
    def newest(self) -> Written | None:
        """What was written last, if anything was."""
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
        # A version that is written again, after a resume say, still gets a fresh name.
        self._count += 1
        written = Written(version, self._folder / f"{version}-{self._count}")
        self._weights.save(written.folder, untied=untied)
        if self._form is not None:
            convert_adapter(written.folder, self._form)
        with self._lock:
            before, self._newest = self._newest, written
        if before is not None:
            self._remove_unused(before)

    def hold(self) -> Written:
        """Return the newest weights, which stay where they are until :meth:`release`."""
        with self._lock:
            assert self._newest is not None, "nothing was written yet"
            self._held[self._newest] += 1
            return self._newest

    def release(self, written: Written) -> None:
        """Hold weights no longer."""
        with self._lock:
            self._held[written] -= 1
        self._remove_unused(written)

    @contextmanager
    def held(self) -> Iterator[Written]:
        """Hold the newest weights until the block ends."""
        written = self.hold()
        try:
            yield written
        finally:
            self.release(written)

    def _remove_unused(self, written: Written) -> None:
        with self._lock:
            if written == self._newest or self._held[written]:
                return
            del self._held[written]
        shutil.rmtree(written.folder, ignore_errors=True)
