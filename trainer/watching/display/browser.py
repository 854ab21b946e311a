"""The sample browser: the newest rollouts, one at a time, by keys."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rich.console import Console
from rich.text import Text

from vf.traces.trace import Trace
from vf.trainer.watching.display.board import Board
from vf.trainer.watching.display.conversation import conversation, outcome
from vf.trainer.watching.display.rows import fit, heading


class Browser:
    """Which of the newest rollouts is shown, and which part of it.

    Until a key is pressed it shows the newest of the last finished step. A rollout that the user
    went to stays, even once it is no longer among the newest. One thread only.

    Args:
        board: Has the rollouts.
        console: For wrapping.
    """

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console
        self.wanted: bool | None = None  # None: where there is room
        self.visible = False  # as last drawn
        self._shown: tuple[int, Trace] | None = None
        self._follows = True
        self._step = -1
        self._scroll = 0
        self._page = 10
        self._drawn: tuple[int, int] | None = None
        self._rows: list[Text] = []
        self._rest: Iterator[Text] = iter(())

    def press(self, key: str) -> None:
        """Do what a key asks for; unknown keys do nothing."""
        if key == "s":
            self.wanted = not self.visible
        elif key == "q":
            self.wanted = False
        elif key in _MOVES:
            self._go(_MOVES[key])
        elif key == "newest":
            self._follows, self._step = True, -1
        elif key in _SCROLLS:
            lines, pages = _SCROLLS[key]
            self._scroll = max(0, self._scroll + lines + pages * max(1, self._page - 1))
            self._follows = False

    def view(self, width: int, height: int) -> list[Text]:
        """Return ``height`` rows of at most ``width`` columns."""
        self._follow()
        if self._shown is None:
            empty = [heading("samples", "", width), Text("  no rollout has finished yet", "dim")]
            return [*empty, *[Text()] * height][:height]
        number, trace = self._shown
        if self._drawn != (number, width):
            self._drawn, self._rows = (number, width), []
            self._rest = conversation(trace, width, self._console)
        self._page = max(1, height - 2)
        # One more than is seen, to know whether there is more.
        self._rows += islice(self._rest, max(0, self._scroll + self._page + 1 - len(self._rows)))
        self._scroll = max(0, min(self._scroll, len(self._rows) - self._page))
        rows = self._rows[self._scroll : self._scroll + self._page]
        more = len(self._rows) > self._scroll + self._page
        place = f"{'↑' if self._scroll else ' '}{'↓' if more else ' '} {self._place(number)}"
        title = fit(Text(outcome(trace), style="bold"), width)
        return [heading("samples", place, width), title, *rows, *[Text()] * height][:height]

    def _follow(self) -> None:
        traces = self._board.traces
        if traces and self._follows and self._step != self._board.step:
            self._show(traces[-1])
            # Until the first step is done there is no other occasion to change.
            self._step = self._board.step

    def _go(self, by: int) -> None:
        traces = self._board.traces
        if not traces or self._shown is None:
            return
        here = next((i for i, each in enumerate(traces) if each[0] == self._shown[0]), None)
        # From one that is no longer among them, the oldest is the next.
        to = here + by if here is not None else 0
        self._follows = to >= len(traces)
        self._show(traces[max(0, min(to, len(traces) - 1))])

    def _show(self, entry: tuple[int, Trace]) -> None:
        if self._shown is None or entry[0] != self._shown[0]:
            self._shown, self._scroll = entry, 0

    def _place(self, number: int) -> str:
        traces = self._board.traces
        newer = traces[-1][0] - number
        return f"rollout {number}, " + (f"{newer} newer" if newer else "the newest")


_MOVES = {"left": -1, "h": -1, "p": -1, "right": 1, "l": 1, "n": 1}
_SCROLLS = {
    "up": (-1, 0),
    "k": (-1, 0),
    "down": (1, 0),
    "j": (1, 0),
    "page up": (0, -1),
    "page down": (0, 1),
    " ": (0, 1),
}
