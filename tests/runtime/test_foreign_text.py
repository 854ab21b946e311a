"""Foreign text commands neither a terminal nor rich, wherever it is printed or logged."""

from __future__ import annotations

import ast
import io
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from vf.runtime.command import complain, run_command
from vf.runtime.errors import ModelError
from vf.runtime.heartbeat import working
from vf.runtime.terminal import make_console, note_line, print_wrapped, show
from vf.runtime.visible import VisibleFormatter, visible

ROOT = Path(__file__).resolve().parent.parent.parent

# A command to rename the window, colours, a C1 control, a way back, and an order of characters.
HOSTILE = "a\x1b]0;owned\x07b\x1b[31mc\x9b2Jd\re\u202ef [/] [bold]g[/bold] [/nonsense] :smile:"
SHOWN = (
    "a<U+001B>]0;owned<U+0007>b<U+001B>[31mc<U+009B>2Jd<U+000D>e<U+202E>f "
    "[/] [bold]g[/bold] [/nonsense] :smile:"
)


def _table() -> Table:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    return table


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "renderable",
    [HOSTILE, Text(HOSTILE), Text.assemble((HOSTILE, "bold")), note_line(HOSTILE), _table(),
     Rule(HOSTILE), Panel(Text(HOSTILE))],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_a_console_prints_text_as_text(
    renderable: Any, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = make_console(width=300)
    console.file, console._force_terminal = io.StringIO(), terminal
    console.print(renderable)
    printed = console.file.getvalue()
    for char in "\x07\x9b\r\u202e":
        assert char not in printed
    assert "\x1b[31m" not in printed
    assert "\x1b]" not in printed
    assert "[/] [bold]g[/bold] [/nonsense] :smile:" in printed


def test_rows_and_paragraphs_are_printed_as_text() -> None:
    console = make_console(width=300)
    console.file = io.StringIO()
    show(console, [("what", HOSTILE)])
    print_wrapped(console, HOSTILE)
    with working(console, HOSTILE) as say:
        say(HOSTILE)
    assert "\x1b" not in console.file.getvalue()


def test_an_error_message_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        logging.getLogger("vf.anything").warning("the first: %s", HOSTILE)
        raise ModelError(HOSTILE)

    assert run_command("vf-rl", fail) == 1
    complain("vf-rl", HOSTILE)
    assert "\x1b" not in capsys.readouterr().err


def test_a_line_of_a_log_is_text() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(VisibleFormatter("%(message)s"))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        failure: Any = sys.exc_info()
    handler.emit(logging.LogRecord("vf", 30, "", 0, "%s", (HOSTILE,), failure))
    assert stream.getvalue().startswith(SHOWN + "\n")
    assert "\x1b" not in stream.getvalue()


def test_text_that_can_be_seen_stays_as_it_is() -> None:
    for text in ("", "reward 0.5 [a]", "Größe 世界 🦀\n\tнет"):
        assert visible(text) == text


# Rich reads these as markup whatever the console says.
READS_MARKUP = {"TextColumn"}
# One of them is in every source that has a fault.
WORDS = re.compile("markup|TextColumn|Panel|status|basicConfig|Console|Formatter")


def faults(source: str) -> Iterator[str]:
    """Yield the places of a source at which text could be read as markup, or pass unseen."""
    for node in ast.walk(ast.parse(source)) if WORDS.search(source) else ():
        if isinstance(node, ast.ImportFrom) and node.module == "rich.markup":
            yield f"{node.lineno}: rich.markup"
        if isinstance(node, ast.Attribute) and node.attr == "from_markup":
            yield f"{node.lineno}: from_markup"
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = {word.arg for word in node.keywords}
        if not WORDS.fullmatch(name) and "markup" not in given:
            continue
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if words.get("markup") == "True":
            yield f"{node.lineno}: markup=True"
        if name in READS_MARKUP and words.get("markup") != "False":
            yield f"{node.lineno}: {name} without markup=False"
        if name == "Panel" and not words.get("title", "Text(").startswith("Text"):
            yield f"{node.lineno}: a title that is no Text"
        if name == "status" and not ast.unparse(node.args[0]).startswith("Text("):
            yield f"{node.lineno}: a status that is no Text"
        if name == "basicConfig" and "handlers" not in words:
            yield f"{node.lineno}: a log without VisibleFormatter"
        if ast.unparse(node.func) in ("Console", "rich.console.Console", "logging.Formatter"):
            yield f"{node.lineno}: {name}"


def test_the_faults_are_found() -> None:
    for source in (
        "from rich.markup import escape",
        "Text.from_markup(x)",
        "console.print(x, markup=True)",
        "TextColumn('{task.description}')",
        "Panel(x, title=name)",
        "console.status(text)",
        "logging.basicConfig(level=1)",
        "Console()",
    ):
        assert list(faults(source)), source


def test_no_text_is_read_as_markup_and_no_log_or_console_is_another() -> None:
    rooms = [link.name for link in (ROOT / "vf").iterdir() if link.is_symlink()]
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for room in rooms
        if room != "sandbox"  # whose own Console, inside, is an interpreter's
        for path in (ROOT / room).rglob("*.py")
        for fault in faults(path.read_text())
    ]
    assert found == []
