"""The dashboard's parts: curve, phase bar, and that every size of screen gets what fits."""

from __future__ import annotations

import io
import math
import unicodedata
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

import vf
from vf.trainer.watching.display.board import KEPT_TRACES, Board
from vf.trainer.watching.display.browser import Browser
from vf.trainer.watching.display.frame import Frame
from vf.trainer.watching.display.keyboard import Keyboard
from vf.trainer.watching.display.phase_bar import COLOURS, phase_bar, phase_legend
from vf.trainer.watching.display.plot import DIAMOND, reward_plot

CONSOLE = Console(file=io.StringIO(), width=80)
HOSTILE = "\x1b[2J\x07\r\x9b1m‮ [red]日本語[/red]\tタブ\n" + "w" * 300

rewards = st.floats(0, 1) | st.just(math.nan)
curves = st.lists(rewards, max_size=40).map(lambda ys: [(float(i), y) for i, y in enumerate(ys)])


def heights(plot: list[Text]) -> dict[int, list[int]]:
    """Return the dots by column, each by how many rows of dots it is from the top."""
    bits = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (0, 1), 4: (1, 1), 5: (2, 1), 6: (3, 0), 7: (3, 1)}
    found: dict[int, list[int]] = {}
    for row, text in enumerate(plot[:-1]):
        for column, char in enumerate(text.plain[6:]):
            if 0x2800 < ord(char) < 0x2900:
                for bit, (down, right) in bits.items():
                    if ord(char) - 0x2800 >> bit & 1:
                        found.setdefault(2 * column + right, []).append(4 * row + down)
    return dict(sorted(found.items()))


def test_a_line_is_drawn_as_a_line_from_corner_to_corner() -> None:
    plot = reward_plot([(step, step / 10) for step in range(11)], [], 46, 11)
    assert len(plot) == 11
    dots = heights(plot)
    assert list(dots) == list(range(80))
    for column, rows in dots.items():
        for row in rows:
            assert abs(row - 39 * (1 - column / 79)) <= 1
    assert plot[0].plain.startswith("1.00 ┤")
    assert plot[9].plain.startswith("0.00 ┤")
    assert plot[10].plain.split() == ["step", "0", "10"]


def test_a_jump_is_one_piece() -> None:
    dots = heights(reward_plot([(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0)], [], 20, 9))
    drawn = sorted({row for rows in dots.values() for row in rows})
    assert drawn == list(range(32))


def test_more_steps_than_dots_show_their_mean() -> None:
    noisy = [(step, 0.25 + 0.5 * (step % 2)) for step in range(1000)]
    dots = heights(reward_plot([*noisy, (1000, 1.0), (1001, 0.0)], [], 26, 11))
    flat = [rows for column, rows in dots.items() if column < 36]
    assert all(abs(row - 19.5) <= 2 for rows in flat for row in rows)


def test_evaluations_are_diamonds_where_they_belong() -> None:
    plot = reward_plot([(0, 0.0), (4, 1.0)], [(0, 1.0), (2, 0.5), (4, 0.0)], 26, 10)
    at = [(r, c) for r, t in enumerate(plot) for c, char in enumerate(t.plain) if char == DIAMOND]
    (top, left), (middle, centre), (bottom, right) = at
    assert (top, left, bottom, right) == (0, 6, 8, 25)
    assert middle == 4
    assert abs(centre - 16) <= 1


@settings(max_examples=60, deadline=None)
@given(curves, curves, st.integers(16, 200), st.integers(3, 30))
def test_any_curve_fits(
    train: list[tuple[float, float]],
    held_out: list[tuple[float, float]],
    width: int,
    height: int,
) -> None:
    plot = reward_plot(train, held_out, width, height)
    assert len(plot) == height
    assert all(row.cell_len <= width for row in plot)
    marks = sum(row.plain.count(DIAMOND) for row in plot)
    assert (marks > 0) == any(math.isfinite(value) for _, value in held_out)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*COLOURS, "more"]), st.floats(0, 1e6), min_size=1),
    st.integers(1, 200),
)
def test_the_phase_bar_is_as_long_as_the_screen_and_true(
    seconds: dict[str, float], width: int
) -> None:
    total = sum(seconds.values())
    if not total:
        return
    bar = phase_bar(seconds, width)
    assert bar.cell_len == width
    legend = [part.plain.split()[1:] for part in phase_legend(seconds)]
    assert [name for name, _ in legend] == [n for n in [*COLOURS, "more"] if seconds.get(n)]
    for span in bar.spans:
        names = [n for n in seconds if COLOURS.get(n, "white") == span.style]
        share = seconds[names[0]] / total
        assert abs((span.end - span.start) - share * width) <= 1
    for name, percent in legend:
        assert percent == f"{seconds[name] / total:.0%}"


def test_without_colours_neighbours_in_the_bar_differ() -> None:
    bar = phase_bar(dict.fromkeys(COLOURS, 1.0), 80, colour=False).plain
    assert len(bar) == 80
    assert sum(one != other for one, other in pairwise(bar)) == len(COLOURS) - 1
    legend = [part.plain[0] for part in phase_legend(dict.fromkeys(COLOURS, 1.0), colour=False)]
    assert legend == [bar[10 * index] for index in range(len(COLOURS))]


def hostile_board() -> Board:
    board = Board()
    board.start(0, 100)
    board.enter(HOSTILE)
    board.rollouts = (3, 7, True)
    for step in range(1, 30):
        seconds = {f"time/{name}": step * 1.0 for name in COLOURS}
        board.finish({"step": step, "reward/mean": step / 30, "loss": 1e9, "entropy": 0, **seconds})
    board.evaluated(29, {"eval/reward/mean": 0.5})
    for number in range(5):
        trace = vf.Trace("e", vf.Task(HOSTILE, "p"), 0)
        call = vf.ToolCall("c", HOSTILE, HOSTILE)
        trace.messages = [vf.Message("assistant", HOSTILE, reasoning=HOSTILE, tool_calls=[call])]
        trace.tool_events = [vf.ToolEvent(0, "c", "t", "rejected", HOSTILE)]
        board.trace(trace)
        board.note(f"{number} {HOSTILE}")
    return board


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 260), st.integers(1, 90), st.sampled_from([None, True, False]))
def test_every_size_gets_what_fits_and_no_control_characters(
    width: int, height: int, wanted: bool | None
) -> None:
    board = hostile_board()
    browser = Browser(board, CONSOLE)
    browser.wanted = wanted
    rows = Frame(board, browser).rows(width, height)
    assert len(rows) <= height
    for row in rows:
        assert row.cell_len <= width
        assert not [char for char in row.plain if unicodedata.category(char) in ("Cc", "Cf")]


def test_a_screen_of_60_by_15_has_every_part() -> None:
    board = hostile_board()
    text = "\n".join(row.plain for row in Frame(board, Browser(board, CONSOLE)).rows(60, 15))
    for part in ("step 29/100", "3/7 held-out", "┤", "step 1", "█", "generate 12%", "loss", "! 4 "):
        assert part in text


def test_a_huge_conversation_is_made_no_further_than_it_is_read() -> None:
    board = Board()
    trace = vf.Trace("e", vf.Task("t", "p"), 0)
    trace.messages = [vf.Message("user", "word " * 1_000_000) for _ in range(10)]
    board.trace(trace)
    browser = Browser(board, CONSOLE)
    for _ in range(30):
        rows = browser.view(80, 20)
        assert len(rows) == 20
        assert rows[-1].plain.strip().startswith("word word")
        browser.press("page down")
    assert 30 * 17 < len(browser._rows) < 1000  # of some 650,000


def test_only_the_newest_rollouts_are_kept_and_each_once() -> None:
    board = Board()
    traces = [vf.Trace("e", vf.Task(str(n), "p"), 0) for n in range(KEPT_TRACES + 5)]
    for trace in traces:
        board.trace(trace)
        board.trace(trace)
    assert [trace.task.id for _, trace in board.traces] == [t.task.id for t in traces[5:]]
    assert [number for number, _ in board.traces] == list(range(6, KEPT_TRACES + 6))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 30), max_size=6))
def test_keys_are_read_wherever_they_are_cut(cuts: list[int]) -> None:
    typed = b"s\x1b[A\x1bOD\x1b[6~hq\x1b[1;5C\x1bx"
    keyboard, keys = Keyboard(-1), []
    edges = sorted({0, len(typed), *(min(cut, len(typed)) for cut in cuts)})
    for start, end in pairwise(edges):
        keys += keyboard.decode(typed[start:end])
    assert keys == ["s", "up", "left", "page down", "h", "q", "x"]
