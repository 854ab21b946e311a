"""Curves as inline SVG, with their labels as HTML so that they stay readable at any width."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from vf.traces.view.plain import visible

POINTS = 240  # of one curve; where there are more, each stands for the mean of several

_WIDTH, _HEIGHT = 1000.0, 400.0  # of the drawing, which is stretched to whatever place there is

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve.

    Attributes:
        name: What it shows.
        points: Pairs of x and y, in order of x.
        dotted: Draw each point, with a dashed line between.
    """

    name: str
    points: Sequence[Point]
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """How y is shown.

    Attributes:
        text: A value in words.
        low: Where it begins; by default at the least value.
        high: Where it ends; by default at the greatest value.
        lines: Values that are marked by a line each, with a name.
    """

    text: Callable[[float], str]
    low: float | None = None
    high: float | None = None
    lines: Mapping[float, str] = field(default_factory=dict)


def short(value: float) -> str:
    """Return a number in few characters."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """Return a share in per cent."""
    return f"{value:.3g} %" if (value := 100 * value) < 10 else f"{value:.0f} %"


def escape(text: str) -> str:
    """Return text that cannot be markup, and in which nothing is hidden."""
    return html.escape(visible(text))


def thin(points: Sequence[Point], most: int = POINTS) -> list[tuple[float, float, float, float]]:
    """Return at most ``most`` points: x, mean, least and greatest y of each run of neighbours."""
    size = -(-len(points) // most)
    thinned = []
    for start in range(0, len(points), size or 1):
        xs, ys = zip(*points[start : start + size], strict=True)
        thinned.append((fmean(xs), fmean(ys), min(ys), max(ys)))
    return thinned


def figure(title: str, series: Sequence[Series], axis: Axis, last: float, *, wide: bool) -> str:
    """Return a chart with its title, labels and legend, as HTML.

    Args:
        title: Its name.
        series: The curves; those without points are left out.
        axis: How y is shown.
        last: Where x ends; it begins at 0.
        wide: Label y at five places rather than at both ends.
    """
    series = [each for each in series if each.points]
    values = [y for each in series for _, y in each.points]
    low = min([*values, *axis.lines]) if axis.low is None else axis.low
    high = max([*values, *axis.lines]) if axis.high is None else axis.high
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    ticks = [high - (high - low) * i / (4 if wide else 1) for i in range(5 if wide else 2)]
    ends = "".join(
        f'<span class="end k{index}"><i></i>{escape(each.name)} '
        f"<b>{escape(axis.text(each.points[-1][1]))}</b></span>"
        for index, each in enumerate(series)
    )
    marks = "".join(
        f'<span class="end limit"><i></i>{escape(name)}</span>'
        for name in axis.lines.values()
        if name
    )
    style = ("wide" if wide else "small") + (" many" if len(series) > 1 or marks else "")
    return (
        f'<figure class="{style}"><figcaption><h3>{escape(title)}</h3>'
        f"{ends}{marks}</figcaption><div class='plot'><div class='ys'>"
        + "".join(f"<span>{escape(axis.text(tick))}</span>" for tick in ticks)
        + f"</div>{_drawing(title, series, axis, (low, high), last, len(ticks))}"
        f"<div class='xs'><span>0</span>"
        + (f"<span>{short(round(last / 2))}</span>" if wide and last >= 2 else "")
        + f"<span>step {short(last)}</span></div></div></figure>"
    )


def _drawing(
    title: str,
    series: Sequence[Series],
    axis: Axis,
    span: tuple[float, float],
    last: float,
    ticks: int,
) -> str:
    low, high = span

    def at(x: float, y: float) -> str:
        y = min(high, max(low, y))
        return f"{_WIDTH * x / (last or 1):.1f},{_HEIGHT * (high - y) / (high - low):.1f}"

    parts = []
    for tick in range(ticks):
        y = _HEIGHT * tick / (ticks - 1)
        parts.append(f'<path class="tick" d="M0,{y:.1f}H{_WIDTH:.0f}"/>')
    for limit in axis.lines:
        parts.append(f'<path class="limit" d="M{at(0, limit)}H{_WIDTH:.0f}"/>')
    for index, each in enumerate(series):
        points = thin(each.points)
        line = "L".join(at(x, y) for x, y, _, _ in points)
        if len(points) < len(each.points):
            band = [*(at(x, most) for x, _, _, most in points)]
            band += [at(x, least) for x, _, least, _ in reversed(points)]
            parts.append(f'<path class="band k{index}" d="M{"L".join(band)}Z"/>')
        style = f"k{index}{' dashed' if each.dotted else ''}"
        parts.append(f'<path class="curve {style}" d="M{line}"/>')
        if each.dotted or len(points) == 1:
            parts += [
                f'<path class="dot k{index}" d="M{at(x, y)}h0">'
                f"<title>step {x:g}: {escape(axis.text(y))}</title></path>"
                for x, y, _, _ in points
            ]
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)} over steps">{"".join(parts)}</svg>'
    )


def stacked_bar(shares: Mapping[str, float]) -> str:
    """Return one bar of named shares that sum up to 1, with a legend, as HTML.

    A share of 0 is not shown; it keeps its colour for itself.
    """
    parts, keys, place = [], [], 0.0
    for index, (name, share) in enumerate(shares.items()):
        if not share:
            continue
        said = f"{escape(name)} {share:.0%}"
        parts.append(
            f'<rect class="p{index}" x="{_WIDTH * place:.1f}" width="{_WIDTH * share:.1f}" '
            f'y="0" height="10"><title>{said}</title></rect>'
        )
        keys.append(f'<span class="end p{index}"><i></i>{escape(name)} <b>{share:.0%}</b></span>')
        place += share
    return (
        f'<svg class="stack" viewBox="0 0 {_WIDTH:.0f} 10" preserveAspectRatio="none" role="img" '
        f'aria-label="shares of the time">{"".join(parts)}</svg>'
        f'<p class="keys">{"".join(keys)}</p>'
    )
