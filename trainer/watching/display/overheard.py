"""What others write to stdout and stderr while a screen is drawn there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO, cast

from rich.console import Console
from rich.file_proxy import FileProxy


class _Lines:
    """A file that passes on each line that is written to it."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                self._tell(line)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


class Overheard:
    """Stands in for ``sys.stdout`` and ``sys.stderr``, and tells what is written to them.

    Args:
        tell: Called with each line, by the thread that wrote it.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        file = cast(TextIO, _Lines(tell))
        self._console = Console(file=file, soft_wrap=True, highlight=False, color_system=None)
        self._before: dict[str, tuple[TextIO, TextIO]] = {}

    def open(self) -> None:
        """Begin to listen."""
        for name in () if self._before else ("stdout", "stderr"):
            before = getattr(sys, name)
            ours = cast(TextIO, FileProxy(self._console, before))
            self._before[name] = (ours, before)
            setattr(sys, name, ours)

    def close(self) -> None:
        """Give both back. Safe to call twice."""
        for name, (ours, before) in self._before.items():
            ours.flush()
            if getattr(sys, name) is ours:  # else someone else stands in for it by now
                setattr(sys, name, before)
        self._before = {}
