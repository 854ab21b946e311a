"""The reward curve in characters: braille dots for training, diamonds for evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from rich.style import Style
from rich.text import Text

TRAINING, HELD_OUT = "bright_cyan", "bold bright_yellow"
DIAMOND = "◆"
_CURVE, _MARK = Style.parse(f"not dim {TRAINING}"), Style.parse(f"not dim {HELD_OUT}")
_GUTTER = 6  # columns for the labels of the upright axis, with the axis
_BRAILLE = 0x2800
# The bit of a dot in its character, by its row and column there (Unicode, "Braille Patterns").
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

Points = Sequence[tuple[float, float]]


def reward_plot(train: Points, held_out: Points, width: int, height: int) -> list[Text]:
    """Return a plot of rewards over steps, ``height`` rows of at most ``width`` columns.

    The last row has the steps. A curve with more points than dots shows their means.

    Args:
        train: Steps and rewards, by step; what is not finite is left out.
        held_out: Likewise, of evaluations.
        width: Columns, at least 16.
        height: Rows, at least 3.
    """
    train = [point for point in train if math.isfinite(point[1])]
    held_out = [point for point in held_out if math.isfinite(point[1])]
    rows, columns = height - 1, width - _GUTTER
    train = _thin(train, 4 * columns)
    every = [*train, *held_out]
    if not every:
        blank = [Text(" " * (_GUTTER - 1) + "│", style="dim") for _ in range(height)]
        blank[rows // 2].append("  no step is done yet"[:columns])
        return blank
    low, high, tick = _limits([value for _, value in every])
    first, last = min(step for step, _ in every), max(step for step, _ in every)

    def x(step: float) -> int:
        return round((step - first) / ((last - first) or 1) * (2 * columns - 1))

    def y(value: float) -> int:
        return round((high - value) / (high - low) * (4 * rows - 1))

    dots = [[0] * columns for _ in range(rows)]
    for column, row in _line([(x(step), y(value)) for step, value in train]):
        dots[row // 4][column // 2] |= _BITS[row % 4][column % 2]
    marks = {(y(value) // 4, x(step) // 2) for step, value in held_out}
    labels = {
        y(low + index * tick) // 4: low + index * tick
        for index in reversed(range(round((high - low) / tick) + 1))
    }
    return [
        *(_row(labels.get(row), cells, row, marks) for row, cells in enumerate(dots)),
        _steps(first, last, columns),
    ]


def _thin(points: Points, most: int) -> Points:
    """Return about ``most`` points at most: the means of neighbours where there are more."""
    size = len(points) // most
    if size < 2:
        return points
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    return [(run[-1][0], fmean(value for _, value in run)) for run in runs]


def _limits(values: Sequence[float]) -> tuple[float, float, float]:
    """Return round numbers around values, and how far apart the labels between them are."""
    low, high = min(values), max(values)
    raw = max(high - low, 0.04) / 4  # labels have two decimals
    power = 10.0 ** math.floor(math.log10(raw))
    tick = next(size * power for size in (1, 2, 5, 10) if size * power >= raw * 0.999)
    bottom = math.floor(low / tick + 1e-9) * tick
    top = math.ceil(high / tick - 1e-9) * tick
    if top > bottom:
        return bottom, top, tick
    # A single value: nothing is below 0 or above 1.
    return bottom - tick * (bottom > 0), top + tick * (top < 1), tick


def _line(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the dots of a curve through points; of several in one column, through their mean."""
    sums: dict[int, tuple[int, int]] = {}
    for column, row in points:
        total, count = sums.get(column, (0, 0))
        sums[column] = (total + row, count + 1)
    knots = [(column, round(total / count)) for column, (total, count) in sums.items()]
    dots = knots[:1]
    for (x0, y0), (x1, y1) in pairwise(knots):
        before = y0
        for column in range(x0 + 1, x1 + 1):
            row = round(y0 + (y1 - y0) * (column - x0) / (x1 - x0))
            # A steep piece is filled up, or it would fall apart into single dots.
            between = range(before, row, 1 if row > before else -1)
            dots += [(column, each) for each in between[1:]]
            dots.append((column, row))
            before = row
    return dots


def _row(label: float | None, cells: list[int], row: int, marks: set[tuple[int, int]]) -> Text:
    gutter = _GUTTER - 1
    text = Text(" " * gutter if label is None else f"{label:{gutter - 1}.2f} ", style="dim")
    text.append("│" if label is None else "┤", style="dim")
    curve = "".join(chr(_BRAILLE + bits) if bits else " " for bits in cells)
    at = 0
    for mark in sorted(column for there, column in marks if there == row):
        text.append(curve[at:mark], style=_CURVE).append(DIAMOND, style=_MARK)
        at = mark + 1
    return text.append(curve[at:], style=_CURVE)


def _steps(first: float, last: float, columns: int) -> Text:
    line = [" "] * columns
    end = f"{last:g}"
    labels = [(0, f"{first:g}"), (columns - len(end), end)]
    if columns > 40 and last - first > 1:
        middle = round((first + last) / 2)
        at = round((middle - first) / (last - first) * columns)
        labels.append((at, f"{middle:g}"))
    for at, label in labels[:1] if first == last else labels:
        line[at : at + len(label)] = label
    return Text(f"{'step':>{_GUTTER - 1}} " + "".join(line[:columns]), style="dim")
