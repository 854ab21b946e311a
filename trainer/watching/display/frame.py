"""The dashboard's one frame: which parts there is room for, and where they stand."""

from __future__ import annotations

import time

from rich.text import Text

from vf.evaluation.progress import clock
from vf.traces.view.plain import visible
from vf.trainer.watching.display.board import Board
from vf.trainer.watching.display.browser import Browser
from vf.trainer.watching.display.numbers import key_numbers
from vf.trainer.watching.display.phase_bar import colour_of, phase_bar, phase_legend
from vf.trainer.watching.display.plot import DIAMOND, HELD_OUT, TRAINING, reward_plot
from vf.trainer.watching.display.rows import beside, fit, flow, heading, meter

WIDE = 116  # columns from which the browser stands beside the figures
TALL = 30  # rows from which it stands below them
_FIGURE_ROWS = 17  # that the figures have then
_ROOMY = 22  # rows from which the figures have headings
_MAX_PLOT = 24


class Frame:
    """Composes the dashboard.

    Args:
        board: What to show.
        browser: Shows the rollouts.
        colour: Whether the terminal shows colours.
    """

    def __init__(self, board: Board, browser: Browser, *, colour: bool = True) -> None:
        self._board = board
        self._browser = browser
        self._colour = colour
        self._plot: tuple[object, list[Text]] = (None, [])

    def rows(self, width: int, height: int) -> list[Text]:
        """Return ``height`` rows of at most ``width`` columns that show how the run stands."""
        board, browser = self._board, self._browser
        room = max(0, height - 3)
        beside_figures = width >= WIDE and room >= 8
        below_figures = not beside_figures and height >= TALL
        fits = beside_figures or below_figures
        browser.visible = fits if browser.wanted is None else browser.wanted
        if not browser.visible:
            body = self.figures(width, room)
        elif beside_figures:
            left = (width - 3) // 2
            shown = browser.view(width - 3 - left, room)
            body = beside(self.figures(left, room), shown, left)
        elif below_figures:
            upper = max(_FIGURE_ROWS, room * 3 // 5)
            body = self.figures(width, upper) + browser.view(width, room - upper)
        else:
            body = browser.view(width, room)
        rows = [_progress(board, width), _now(board, width), *body]
        if height > 3:
            rows.append(_keys(browser, width))
        return [fit(row, width) for row in rows[:height]]

    def figures(self, width: int, height: int, *, notes: bool = True) -> list[Text]:
        """Return ``height`` rows: curve, phases, numbers and notes, as far as there is room."""
        roomy = height >= _ROOMY
        sections = [
            _phases(self._board, width, roomy=roomy, colour=self._colour),
            _numbers(self._board, width, 4 if roomy else 2),
            _notes(self._board, width, 5 if roomy else 2) if notes else [],
        ]
        while sections and height - sum(map(len, sections)) < 5:
            sections.pop()  # the notes come again after the run, the numbers stand in a file
        room = height - sum(map(len, sections))
        rows = self._curve(width, min(room - 1, _MAX_PLOT))
        rows += [row for section in sections for row in section]
        return [*rows, *[Text()] * height][:height]

    def _curve(self, width: int, height: int) -> list[Text]:
        if height < 3 or width < 20:
            return []
        train, held_out = self._board.rewards, self._board.held_out
        key = (width, height, len(train), len(held_out))
        if self._plot[0] != key:
            self._plot = (key, reward_plot(train, held_out, width, height))
        return [heading("reward", _legend(self._board), width), *self._plot[1]]


def _progress(board: Board, width: int) -> Text:
    share = board.step / max(1, board.max_steps)
    where = f"step {board.step}/{board.max_steps} "
    left = board.seconds_left
    times = f" {share:.0%}  {clock(board.seconds)} elapsed"
    if left is not None:
        times += f", {clock(left)} left"
    row = Text(where, style="bold")
    bar = width - len(where) - len(times)
    if bar >= 4:
        row.append_text(meter(share, bar, "green"))
    return fit(row.append(times, style="not bold"), width)


def _now(board: Board, width: int) -> Text:
    phase, since = board.phase
    done, total, evaluating = board.rollouts
    what = fit(Text(visible(phase), style=f"bold {colour_of(phase)}"), width // 2)
    what = Text.assemble(what, f" {time.monotonic() - since:.0f} s ")
    if not total:
        return fit(what, width)
    kind = "held-out rollouts" if evaluating else "rollouts"
    count = f" {done}/{total} {kind}"
    what.append(" " * max(0, min(16, width // 5) - what.cell_len))
    bar = width - what.cell_len - len(count)
    if bar >= 4:
        what.append_text(meter(done / total, bar, "magenta" if evaluating else "blue"))
    return fit(what.append(count), width)


def _legend(board: Board) -> Text:
    legend = Text()
    if board.rewards:
        legend.append(f"⠤ training {board.rewards[-1][1]:.3f}", style=TRAINING)
    if board.held_out:
        legend.append("  " if legend.plain else "")
        legend.append(f"{DIAMOND} held out {board.held_out[-1][1]:.3f}", style=HELD_OUT)
    return legend


def _phases(board: Board, width: int, *, roomy: bool, colour: bool) -> list[Text]:
    steps, seconds = board.times
    if not any(seconds.values()):
        return []
    total = f"{sum(seconds.values()):.1f} s"
    what = f"{total} a step, last {steps}" if steps > 1 else f"{total}, last step"
    bar = phase_bar(seconds, width, colour=colour)
    legend = phase_legend(seconds, colour=colour)
    if roomy:
        return [heading("time", what, width), bar, *flow(legend, width, 2)]
    return [bar, *flow([*legend, Text(what, "dim")], width, 2)]


def _numbers(board: Board, width: int, most: int) -> list[Text]:
    cells = [
        Text.assemble((f"{name} ", "dim"), (value, "bold"))
        for name, value in key_numbers(board.metrics)
    ]
    rows = flow(cells, width, most)
    return [heading("numbers", "", width), *rows] if most > 2 and rows else rows


def _notes(board: Board, width: int, most: int) -> list[Text]:
    notes = board.notes[-most:]
    rows = [
        fit(Text.assemble(("! ", "yellow"), visible(note[: 4 * width])), width)
        for note in reversed(notes)
    ]
    return [heading("notes", "in full after the run", width), *rows] if most > 2 and rows else rows


def _keys(browser: Browser, width: int) -> Text:
    if browser.visible:
        text = "s hide samples  ←/→ older, newer  ↑/↓ scroll  Ctrl-C ends the run"
    else:
        text = "s show samples  Ctrl-C ends the run"
    return fit(Text(text, style="dim"), width)
