"""A file of traces as a page holds it, which is encoded again only if it has changed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from vf.runtime.errors import ConfigError
from vf.traces.images import BadImage
from vf.traces.learned import Learned, learned_beside, learned_file
from vf.traces.trace import Trace
from vf.traces.view.encode import compress, pack_trace, row_of, strict, text_of
from vf.traces.view.sources import Source, Unreadable, read

SEARCHED = 1 << 20  # characters of text that are searched, in one blob

Kind = Literal["t", "s", "i"]  # a trace, texts that are searched, or an image
Blob = tuple[Kind, int]  # and its size, in bytes


@dataclass(slots=True)
class Encoded:
    """A file's traces, encoded.

    Attributes:
        source: The file.
        spool: Where the blobs lie, one after the other.
        blobs: The blobs, in their order.
        rows: What the table shows of each trace; ``model`` is what the file calls its model.
        counts: How many traces' texts each blob of texts holds.
        used: The token ids that occur, by the model's name.
        images: The name of each image, in the order of their blobs; each is there once.
        unreadable: How many lines are no traces.
        problems: The first five of them, in words.
    """

    source: Source
    spool: Path
    blobs: list[Blob] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    used: dict[str, set[int]] = field(default_factory=dict)
    images: dict[str, None] = field(default_factory=dict)
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)


class Encoder:
    """Encodes files, and remembers what they became.

    Args:
        folder: The folder of the blobs; it must outlive the encoder.
        images: Whether images are encoded, too; not for a page that is served beside them.
    """

    def __init__(self, folder: Path, *, images: bool = True) -> None:
        self._folder = folder
        self._images = images
        self._cache: dict[Path, tuple[object, Encoded]] = {}

    def encode(self, source: Source, advance: Callable[[int], None] | None = None) -> Encoded:
        """Return a file's traces, as they were encoded before if nothing has changed since.

        Args:
            source: The file.
            advance: Told the number of bytes of every line that was read.

        Raises:
            ConfigError: If the file cannot be opened.
            OSError: If the disk is full.
        """
        state = (source, state_of(source.path))
        before = self._cache.get(source.path)
        if before is not None and before[0] == state:
            return before[1]
        if before is not None:
            before[1].spool.unlink()
            del self._cache[source.path]
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as spool:
            encoded = Encoded(source, Path(spool.name))
            _encode(encoded, spool, advance, images=self._images)
        self._cache[source.path] = state, encoded
        return encoded


def state_of(file: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what differs if a traces file, or what was learned from it, has changed.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        own = file.stat()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    learned = learned_file(file)
    beside = learned.stat() if learned is not None and learned.exists() else None
    return tuple(
        (status.st_ino, status.st_size, status.st_mtime_ns) for status in (own, beside) if status
    )


def _encode(
    encoded: Encoded, spool: IO[bytes], advance: Callable[[int], None] | None, *, images: bool
) -> None:
    texts: list[str] = []

    def flush() -> None:
        if texts:
            _add(encoded, spool, "s", json.dumps(texts).encode())
            encoded.counts.append(len(texts))
            texts.clear()

    learned: dict[str, list[Learned]] = learned_beside(encoded.source.path)
    waiting = 0
    for trace in read(encoded.source, advance):
        if isinstance(trace, Unreadable):
            encoded.unreadable += 1
            if len(encoded.problems) < 5:
                encoded.problems.append(f"line {trace.line}: {trace.why}")
            continue
        of_loss = learned.get(trace.id, [])
        row = row_of(trace)
        row["model"] = encoded.source.model_of(trace)
        row["split"], row["step"] = map(strict, encoded.source.place_of(trace))
        row["learned"] = len({entry.branch for entry in of_loss})
        encoded.rows.append(row)
        ids = encoded.used.setdefault(row["model"], set())
        ids.update(*(branch.token_ids for branch in trace.branches))
        _add(encoded, spool, "t", pack_trace(trace, of_loss))
        if images:
            _add_images(encoded, spool, trace)
        texts.append(text_of(trace))
        waiting += len(texts[-1])
        if waiting >= SEARCHED:
            flush()
            waiting = 0
    flush()


def _add_images(encoded: Encoded, spool: IO[bytes], trace: Trace) -> None:
    """Add the images that are not there yet; the page says of one that is missing that it is."""
    for image in trace.images:
        if image.name not in encoded.images:
            with suppress(BadImage):
                data = image.read()
                encoded.images[image.name] = None
                _add(encoded, spool, "i", data)


def _add(encoded: Encoded, spool: IO[bytes], kind: Kind, data: bytes) -> None:
    encoded.blobs.append((kind, spool.write(compress(data))))
