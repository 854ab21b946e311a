"""The terminal's second screen: entered, drawn on row by row, and left as it was found."""

from __future__ import annotations

import os
from contextlib import suppress

from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.text import Text

# The second screen, so that nothing scrolls away; no cursor; and no wrapping, so that a character
# that is wider than it should be cannot push a row down (xterm's control sequences).
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"


class Screen:
    """Draws rows of text on a terminal, and only those that changed.

    Args:
        console: The terminal's.
    """

    def __init__(self, console: Console) -> None:
        self.fd = console.file.fileno()
        self.colour = console.color_system is not None and not console.no_color
        self._colours = COLOR_SYSTEMS.get(console.color_system or "", ColorSystem.STANDARD)
        self._console = console
        self._entered = False
        self._drawn: tuple[int, int, list[str]] = (0, 0, [])

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows at this moment."""
        try:
            columns, rows = os.get_terminal_size(self.fd)
        except OSError:
            columns = rows = 0
        return columns or 80, rows or 24  # some terminals say 0 for what they do not know

    def enter(self) -> None:
        """Show the second screen. Safe to call twice.

        Raises:
            OSError: The terminal is gone.
        """
        if not self._entered:
            self._entered = True
            self._console.file.flush()
            self._write(_ENTER)
            self.forget()

    def leave(self) -> None:
        """Show the first screen again. Safe to call twice, and if the terminal is gone."""
        if self._entered:
            with suppress(OSError):
                self._write(_LEAVE)
            self._entered = False

    def forget(self) -> None:
        """Draw every row anew next time, whatever others may have written over it."""
        self._drawn = (*self._drawn[:2], [])

    def draw(self, rows: list[Text], width: int, height: int) -> None:
        """Show rows, the first at the top.

        Raises:
            OSError: The terminal is gone.
        """
        lines = [self.render(row) for row in rows]
        resized = self._drawn[:2] != (width, height)
        known = [] if resized else self._drawn[2]
        out = ["\x1b[2J"] if resized else []
        for index, line in enumerate(lines[:height]):
            if index >= len(known) or known[index] != line:
                out.append(f"\x1b[{index + 1};1H\x1b[K{line}")
        self._drawn = (width, height, lines)
        if out:
            self._write("".join(out))

    def render(self, row: Text) -> str:
        """Return a row with the terminal's codes for its styles."""
        out = []
        for text, style, _ in row.render(self._console):
            if style is not None and not self.colour:
                style = style.without_color
            out.append(style.render(text, color_system=self._colours) if style else text)
        return "".join(out)

    def _write(self, text: str) -> None:
        data = text.encode(self._console.encoding, "replace")
        while data:
            data = data[os.write(self.fd, data) :]
