"""Indexes that an environment builds for itself: once per machine and user, then opened."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vf.runtime.errors import ConfigError
from vf.tools.search.build import build_index
from vf.tools.search.meta import META_FILE
from vf.tools.search.sources import Source
from vf.tools.search.tantivy_index import TantivyIndex


def cached_index(
    name: str, content: str, documents: Source, *, progress: bool = False
) -> TantivyIndex:
    """Open the index of some documents; build it first if this machine has none yet.

    It lies in the user's cache folder (``$XDG_CACHE_HOME/vf-rl/indexes``, by default below
    ``~/.cache``), in a folder named after its content. Processes that want the same one at once
    wait for the first to build it. Any of these folders may be removed when no run uses it.

    Args:
        name: The environment's name, with which the folder's begins.
        content: A hash of the documents, and of nothing else.
        documents: The documents to index, read only if there is no index yet.
        progress: Show a progress bar.

    Raises:
        ConfigError: If a document is wrong, tantivy is not installed, or the disk refuses.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "vf-rl" / "indexes" / f"{name}-{content[:32]}-{_engine()}"
    if not (folder / META_FILE).exists():
        with _alone(folder):
            if not (folder / META_FILE).exists():
                build_index(documents, folder, progress=progress)
    return TantivyIndex(folder)


def _engine() -> str:
    """Return what writes the index, which another version might not be able to read."""
    try:
        return f"tantivy-{version('tantivy')}"
    except PackageNotFoundError:
        return "tantivy"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread builds this one; a lock dies with its holder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f".{folder.name}.lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"cannot keep an index in {folder.parent}: {error}; XDG_CACHE_HOME names another place"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
