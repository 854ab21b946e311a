"""What commands print with: colours, figures, links, and rows that end between words."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich._palettes import EIGHT_BIT_PALETTE
from rich.console import Console
from rich.table import Table

from tests.docs.blocks import ROOT
from vf.runtime import terminal
from vf.runtime.terminal import command, figure, fits, link, make_console, print_wrapped, show

ROOMS = ("runtime", "cluster", "sandbox", "tools", "rubrics", "evaluation", "bridges", "trainer")


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def a_terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system="256")


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m|\x1b\]8;[^\x1b]*\x1b\\", "", text)


def luminance(colour: tuple[int, ...]) -> float:
    """Relative luminance of WCAG 2."""
    parts = [value / 255 for value in colour]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", ["ACCENT", "BAD", "CAUTION", "GOOD", "QUIET", "STRONG"])
def test_a_colour_can_be_read_on_black_and_on_white(name: str) -> None:
    number = re.fullmatch(r"color\((\d+)\)", getattr(terminal, name))
    assert number is not None
    light = luminance(tuple(EIGHT_BIT_PALETTE[int(number[1])]))
    assert (light + 0.05) / 0.05 >= 4
    assert 1.05 / (light + 0.05) >= 4


def test_no_command_names_one_of_the_colours_that_vanish() -> None:
    named = re.compile(r"""["\[ ](?:bright_)?(?:yellow|cyan|blue|magenta|green|red)["\]]""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if named.search(line) and ("style" in line.lower() or "[/" in line or "print" in line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (-0.00001, "{:+.4f}", "0"),
        (-2.4e-09, "{:.2g}", "0"),
        (0.0, "{:.0%}", "0%"),
        (0.0049, "{:.0%}", "0%"),
        (1e-05, "{:.2g}", "1e-05"),
        (-0.25, "{:+.4f}", "-0.2500"),
        (1234.0, "{:,.0f}", "1,234"),
        (float("nan"), "{:.3f}", "nan"),
    ],
)
def test_what_is_0_but_for_rounding_is_shown_as_0(value: float, form: str, text: str) -> None:
    assert figure(value, form) == text


def test_rows_stand_in_columns_and_are_never_markup() -> None:
    console = Console(file=io.StringIO(), width=40)
    show(console, [("run", "runs/[red]1[/red]"), ("checkpoint", "x " * 30)])
    assert printed(console).splitlines() == [
        "         run  runs/[red]1[/red]",
        f"  checkpoint  {'x ' * 30}",
    ]


def test_on_a_terminal_no_row_ends_within_a_word() -> None:
    console = a_terminal(30)
    show(console, [("time", "Generating takes 62% of a step"), ("report", f"a {'w' * 28}")])
    assert without_codes(printed(console)).splitlines() == [
        "        time  Generating takes",
        "              62% of a step",
        "      report  ",
        "  a",
        f"  {'w' * 28}",
    ]
    console = a_terminal(30)
    print_wrapped(console, "stop reasons: terminated 80, max_turns 3", "  ")
    assert without_codes(printed(console)).splitlines() == [
        "  stop reasons: terminated",
        "    80, max_turns 3",
    ]


def test_a_command_that_is_too_long_can_be_copied(tmp_path: Path) -> None:
    console = a_terminal(44)
    run = link(tmp_path, "runs/1")
    show(console, [("continue", command("vf-rl", "--resume", run, "--set", "max_steps=60"))])
    lines = without_codes(printed(console)).splitlines()
    assert lines == [
        "    continue  vf-rl --resume runs/1 --set \\",
        "              max_steps=60",
    ]
    assert "\x1b]8;id=" in printed(console)
    assert f";{tmp_path.as_uri()}\x1b\\" in printed(console)


def test_a_link_is_plain_text_where_there_is_no_terminal(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    show(console, [("report", link(tmp_path / "report.html", "report.html"))])
    assert printed(console) == "      report  report.html\n"


def test_a_table_fits_or_does_not() -> None:
    table = Table("a long heading", "b")
    table.add_row("x" * 20, "y")
    assert fits(table, make_console(width=40))
    assert not fits(table, make_console(width=20))
