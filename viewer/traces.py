"""The page of traces behind the live page: up to date, though its files grow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from vf.runtime.errors import ConfigError
from vf.traces.view.encoded import Encoder, state_of
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page

_NONE = b"<!doctype html><meta charset=utf-8><title>Traces</title>"


class TracesPage:
    """One file with all traces, up to date when it is asked for.

    A file is read and encoded again only if it has changed.

    Args:
        folder: The folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "traces.html"
        self._encoder = Encoder(folder, images=False)
        self._seen: Sequence[tuple[Path, object]] | None = None
        self._writing = asyncio.Lock()

    async def page(self, files: Sequence[Path], title: str) -> Path:
        """Return the page of these files, written again if one of them has changed."""
        async with self._writing:
            seen = [(file, state_of(file)) for file in files if file.exists()]
            if seen != self._seen:
                await asyncio.to_thread(self._write, [file for file, _ in seen], title)
                self._seen = seen
        return self._file

    def _write(self, files: Sequence[Path], title: str) -> None:
        from vf.inference.rendering.renderer import token_texts

        try:
            write_page(
                find_sources(files),
                self._file,
                title=title,
                texts_of=token_texts,
                encoder=self._encoder,
                served=True,
            )
        except ConfigError:  # a file was moved away between the look and the reading
            self._file.write_bytes(_NONE)
