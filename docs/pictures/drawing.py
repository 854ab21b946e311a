"""A picture as SVG: boxes, arrows and text that follow the reader's light or dark scheme."""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
STYLE = """
.page { fill: #fff } .box { fill: #f4f5fb; stroke: #5c6bc0 } .plain { fill: #eceff1 }
.sampled { fill: #a5d6a7 } .bridge { fill: #90caf9 } .kept { fill: #dcedc8 }
.train { fill: #ffcc80 }
text { fill: #212121; font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
.note { fill: #5f6368 }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.line { stroke: #5f6368; fill: none } .head { fill: #5f6368 }
@media (prefers-color-scheme: dark) {
.page { fill: #1e2129 } .box { fill: #262b3d; stroke: #7986cb } .plain { fill: #37404a }
.sampled { fill: #2e7d32 } .bridge { fill: #1565c0 } .kept { fill: #33482f }
.train { fill: #b26a00 }
text { fill: #e8eaed } .note { fill: #aab0b8 } .line { stroke: #aab0b8 } .head { fill: #aab0b8 }
}
"""


class Drawing:
    """A picture that grows call by call. Lengths are in px.

    Args:
        width: Of the picture.
        height: Of the picture.
        title: What it shows, for those who cannot see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a box of a class of :data:`STYLE`."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            ' rx="4"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        kind: str = "",
        size: int = 14,
        anchor: str = "start",
    ) -> None:
        """Write a line; ``y`` is its base line."""
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
            f' xml:space="preserve">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, title: str, *notes: str) -> None:
        """Draw a box with a title and smaller lines below it."""
        self.rect(x, y, width, height, "box")
        middle = x + width / 2
        top = y + height / 2 - 9 * len(notes) + 5
        self.text(middle, top, title, size=15, anchor="middle")
        for number, note in enumerate(notes, 1):
            self.text(middle, top + 18 * number, note, kind="note", size=12, anchor="middle")

    def arrow(self, *points: tuple[float, float], both: bool = False) -> None:
        """Draw a line through points, with a head at its end, or at both ends."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        self._parts.append(
            f'<polyline class="line" points="{path}"{start} marker-end="url(#head)"/>'
        )

    def save(self, name: str) -> None:
        """Write the picture beside this file."""
        width, height = self._size
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
            f' width="{width}" height="{height}">',
            f"<title>{escape(self._title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
            ' markerHeight="7" orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/>'
            "</marker></defs>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
            *self._parts,
            "</svg>",
        ]
        path = FOLDER / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {path}")
