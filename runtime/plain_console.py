"""Rich's console for foreign text. Imported where it is used: rich takes a while to load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from vf.runtime.visible import visible


class PlainConsole(Console):
    """A console on which text is text: no markup, no emoji codes, no sequences of control.

    Colours are those of rich's ``Text``.
    """

    def __init__(self, **options: Any) -> None:
        # An environment called two:Two is no emoji.
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render something to segments; those that are the console's own commands stay."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)
