"""What every command prints with: colours, figures, links, and rows that wrap between words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Each has a contrast of at least 4 : 1 with black and with white, where the terminal has 256
# colours. The 16 of ANSI have not: yellow and cyan vanish on white, blue on black.
GOOD, CAUTION, BAD, ACCENT, STRONG, QUIET = (f"color({n})" for n in (28, 130, 161, 31, 163, 243))

# What rich itself would print in other colours.
_RICH = {
    "bar.complete": ACCENT,
    "bar.finished": GOOD,
    "bar.pulse": ACCENT,
    "bar.back": QUIET,
    "progress.download": GOOD,
    "progress.elapsed": QUIET,
    "progress.percentage": STRONG,
    "progress.remaining": ACCENT,
    "status.spinner": GOOD,
}
NAMES = 12  # columns of the names of `show`
NOTHING = 1e-6  # below which a figure is noise of the arithmetic


def make_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console whose colours can be read on black and on white."""
    from rich.theme import Theme

    from vf.runtime.plain_console import PlainConsole

    return PlainConsole(stderr=stderr, width=width, theme=Theme(_RICH))


def note_line(text: str) -> Text:
    """Return a note in full."""
    from rich.text import Text

    return Text.assemble(("note:", CAUTION), f" {text}")


def figure(value: float, form: str) -> str:
    """Return a number as a person reads it: what is 0 but for rounding is ``0``.

    Args:
        value: The number.
        form: A format, such as ``{:+.4f}`` or ``{:.0%}``.
    """
    text = form.format(value)
    digits = re.sub(r"[^\d.e+-]", "", text)
    if abs(value) < NOTHING or (digits and re.fullmatch(r"[+-]?[0.]+", digits)):
        return "0%" if text.endswith("%") else "0"
    return text


def link(path: Path | str, text: str | None = None) -> Text:
    """Return a path as text that terminals open with a click (OSC 8).

    Args:
        path: The file or folder, from the working directory.
        text: The text to show; by default the path as given.
    """
    from rich.style import Style
    from rich.text import Text

    address = Path(path).absolute().as_uri()
    return Text(str(path) if text is None else text, style=Style(link=address))


def command(*words: str | Text) -> Text:
    """Return a command line, which can be copied even where it is wider than the terminal."""
    from rich.text import Text

    return Text(" ", no_wrap=True).join(Text(w) if isinstance(w, str) else w for w in words)


def headline(console: Console, result: str, of: str) -> None:
    """Print what came out, above the rows of :func:`show`, and what it is a result of."""
    from rich.text import Text

    console.print()
    console.print(Text.assemble(" " * (NAMES + 2), (result, f"bold {GOOD}"), (f"  {of}", QUIET)))


def show(console: Console, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Print names and texts in two columns.

    On a terminal, texts continue below each other, and no line ends within a word. A command
    (see :func:`command`) is continued with a backslash. Elsewhere each row is one line.
    """
    from rich.text import Text

    for name, text in rows:
        shown = Text(text) if isinstance(text, str) else text
        head = Text(f"{name:>{NAMES}}  ", style="bold")
        lines = [shown]
        if console.is_terminal:
            room = console.width - len(head)
            if max((len(word) for word in shown.plain.split()), default=0) > room:
                console.print(head)  # a long path gets a line of its own
                head, room = Text("  "), console.width - 2
            lines = _lines(shown, room)
        for line in lines:
            console.print(Text.assemble(head, line), soft_wrap=True)
            head = Text(" " * len(head))


def print_wrapped(console: Console, text: str, indent: str = "") -> None:
    """Print text; on a terminal, its lines end between words and are indented by two more."""
    from rich.text import Text

    lines = [Text(text)]
    if console.is_terminal:
        lines = _lines(lines[0], console.width - len(indent) - 2)
    for number, line in enumerate(lines):
        console.print(Text(indent + "  " * bool(number)) + line, soft_wrap=True)


def _lines(text: Text, width: int) -> list[Text]:
    """Break a text between its words; one that is wider than the width has a line of its own."""
    end = " \\" if text.no_wrap else ""
    breaks, begin, longest = [], 0, max(8, width)
    for word in re.finditer(r"\S+\s*", text.plain):
        stop = len(text.plain[: word.end()].rstrip())
        room = longest - (len(end) if stop < len(text.plain.rstrip()) else 0)
        if word.start() > begin and text[begin:stop].cell_len > room:
            breaks.append(word.start())
            begin = word.start()
    lines = list(text.divide(breaks))
    for line in lines:
        line.rstrip()
    return [*(line.append(end) for line in lines[:-1]), lines[-1]] if lines else [text]


def fits(table: Any, console: Console) -> bool:
    """Return whether a table can be printed without cutting or wrapping one of its cells."""
    unlimited = console.options.update(width=10_000)
    return bool(console.measure(table, options=unlimited).maximum <= console.width)
