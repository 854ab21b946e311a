"""The display of `vf-rl`: the dashboard where there is a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel
from rich.status import Status
from rich.text import Text

from vf.traces.trace import Trace
from vf.traces.view.plain import visible
from vf.trainer.watching.display.board import Board
from vf.trainer.watching.display.browser import Browser
from vf.trainer.watching.display.dashboard import Dashboard, can_draw
from vf.trainer.watching.display.foreground import in_foreground, unstoppable
from vf.trainer.watching.display.frame import Frame
from vf.trainer.watching.display.plain import (
    evaluation_line,
    note_line,
    sample_panel,
    say,
    step_line,
)

if TYPE_CHECKING:
    from vf.trainer.run.metrics import Metrics

WAITING_SECONDS = 15.0  # between lines about what is waited for, where the output is a file
_KEPT_LINES = 10_000  # that are to be read after the run
_LAST_WIDTH, _LAST_HEIGHT = 100, 14  # of the figures that stay on the terminal


class TerminalDisplay:
    """Shows a run where its user is.

    On a terminal, while the process is in its foreground, that is a dashboard on the terminal's
    second screen; what it said (notes, evaluations) is printed once the screen is left, in full.
    Everywhere else (a file, a pipe, ``TERM=dumb``, a run in the background) there is a line for
    each step, evaluation and note, and a sample now and then.

    Example::

        with RLTrainer(plan, folder, TerminalDisplay()) as trainer:
            trainer.train()

    Args:
        console: Where to; stdout by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._board = Board()
        self._dashboard: Dashboard | None = None
        self._waiting: Status | None = None
        self._said_waiting = float("-inf")
        self._unsaid: deque[Text] = deque(maxlen=_KEPT_LINES)

    def waiting(self, text: str) -> None:
        """Say what is being waited for; it may change several times a second."""
        text = visible(text)
        if self._dashboard is not None:
            self._board.enter(text)
        elif self._waiting is not None or self._may_spin():
            with unstoppable():
                if self._waiting is None:
                    self._waiting = self.console.status("")
                    self._waiting.start()
                self._waiting.update(Text(text[: self.console.width - 4].replace("\n", " ")))
        elif time.monotonic() - self._said_waiting > WAITING_SECONDS:
            self._said_waiting = time.monotonic()
            say(self.console, Text(text[:160]))

    def start(self, step: int, max_steps: int) -> None:
        """Begin after a step."""
        self._end_waiting()
        self._board.start(step, max_steps)
        if self._dashboard is None and can_draw(self.console):
            self._dashboard = Dashboard(self.console, self._board, self._heard, self._say_unsaid)
            self._dashboard.start()

    def phase(self, name: str) -> None:
        """Show what the trainer does from now on."""
        self._board.enter(name)

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        """Show how far the rollouts of this step are."""
        self._board.rollouts = (done, total, evaluating)

    def trace(self, trace: Trace) -> None:
        """Keep a finished rollout for the browser, as long as it is one of the newest 50.

        Any thread may call it.
        """
        self._board.trace(trace)

    def step(self, metrics: Metrics) -> None:
        """Show a finished step."""
        self._board.finish(metrics)
        if not self._on_screen:
            say(self.console, step_line(metrics, self._board.max_steps))

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Show a held-out evaluation."""
        self._board.evaluated(step, metrics)
        self._say(evaluation_line(step, metrics))

    def sample(self, trace: Trace) -> None:
        """Show one conversation with its tool calls and reward."""
        self._board.trace(trace)
        if not self._on_screen:
            say(self.console, sample_panel(trace))

    def note(self, text: str) -> None:
        """Say something that the user should know."""
        self._board.note(text)
        self._say(note_line(text))

    def stop(self) -> None:
        """Leave the terminal as it was, and say what is to be read there. Safe to call twice."""
        self._end_waiting()
        if self._dashboard is not None:
            was_shown = self._dashboard.shown
            self._dashboard.stop()
            self._dashboard = None
            if was_shown and len(self._board.rewards) > 1:
                width = min(_LAST_WIDTH, self.console.width)
                frame = Frame(self._board, Browser(self._board, self.console))
                say(self.console, *frame.figures(width, _LAST_HEIGHT, notes=False))
        self._say_unsaid()

    @property
    def _on_screen(self) -> bool:
        return self._dashboard is not None and self._dashboard.shown

    def _say(self, line: Text) -> None:
        """Print a line, at once or when the screen is left."""
        self._unsaid.append(line)
        if not self._on_screen:
            self._say_unsaid()

    def _heard(self, line: str) -> None:
        self._board.note(line)
        self._unsaid.append(Text(visible(line)))

    def _say_unsaid(self) -> None:
        lines: list[Text | Panel] = []
        with suppress(IndexError):  # the dashboard's thread may be at it too
            while True:
                lines.append(self._unsaid.popleft())
        say(self.console, *lines)

    def _may_spin(self) -> bool:
        return can_draw(self.console) and in_foreground(self.console.file.fileno())

    def _end_waiting(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            with unstoppable():
                waiting.stop()
