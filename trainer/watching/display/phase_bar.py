"""Where a step's time goes, as one stacked bar."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.text import Text

# What a step spends its time on, in the order in which it does, each with its colour.
COLOURS = {
    "generate": "blue",
    "environment": "magenta",
    "reward": "yellow",
    "train": "green",
    "publish": "cyan",
    "evaluate": "bright_magenta",
    "save": "bright_black",
    "wait": "red",
}
_OTHER = "white"
_SHADES = "█▓▒░"  # tell neighbours apart where there is no colour


def phase_bar(seconds: Mapping[str, float], width: int, *, colour: bool = True) -> Text:
    """Return a bar of ``width`` columns, with a piece for each phase as long as its share.

    Args:
        seconds: By phase.
        width: Columns.
        colour: Whether the terminal shows colours; else the pieces differ in shade.
    """
    bar, spent, edge = Text(), 0.0, 0
    parts = _parts(seconds)
    total = sum(parts.values())
    for index, (name, part) in enumerate(parts.items()):
        spent += part
        end = round(width * spent / total)
        block = "█" if colour else _SHADES[index % len(_SHADES)]
        bar.append(block * (end - edge), style=colour_of(name))
        edge = end
    return bar


def phase_legend(seconds: Mapping[str, float], *, colour: bool = True) -> list[Text]:
    """Return name and share in percent of each phase, in the bar's order."""
    parts = _parts(seconds)
    total = sum(parts.values())
    legend = []
    for index, (name, part) in enumerate(parts.items()):
        block = "■" if colour else _SHADES[index % len(_SHADES)]
        legend.append(Text.assemble((block, colour_of(name)), f" {name} {part / total:.0%}"))
    return legend


def colour_of(phase: str) -> str:
    """Return a phase's colour."""
    return COLOURS.get(phase, _OTHER)


def _parts(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return what took time at all, in the order of a step; what is unknown comes last."""
    names = [*(n for n in COLOURS if n in seconds), *(n for n in seconds if n not in COLOURS)]
    return {n: seconds[n] for n in names if math.isfinite(seconds[n]) and seconds[n] > 0}
