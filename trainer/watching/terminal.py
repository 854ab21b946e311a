"""The display of `vf-rl`: a live region on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from vf.runtime.heartbeat import Heartbeat
from vf.runtime.terminal import make_console, note_line
from vf.runtime.visible import visible
from vf.traces.trace import Trace
from vf.trainer.run.display import Display
from vf.trainer.run.metrics import Metrics
from vf.trainer.watching.lines import evaluation_line, sample_panel, step_line
from vf.trainer.watching.run_view import RunView


class TerminalDisplay(Display):
    """Shows a run to its user.

    On a terminal, the rows of a :class:`RunView` stay below everything else that is printed:
    notes, held-out evaluations, samples, and what other code writes to stdout and stderr.
    Elsewhere (a file, a pipe, ``TERM=dumb``) each step is a line, too, and where nothing else is
    said for a few seconds, a line says what the run does.

    Example::

        with RLTrainer(plan, folder, TerminalDisplay()) as trainer:
            trainer.train()

    Args:
        console: Where to print; stdout by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or make_console()
        self._view = RunView()
        self._live: Live | None = None
        self._heartbeat = Heartbeat(lambda line: self._say(Text(line)), self._view.now)

    def waiting(self, text: str) -> None:
        """Show what the run waits for; the text may change several times a second."""
        first, self._view.waiting = not self._view.waiting, visible(text)[:160]
        if not self._open() and first:
            self._say(Text(self._view.waiting))

    def start(self, step: int, max_steps: int) -> None:
        """Begin training after ``step``."""
        self._view.start(step, max_steps)
        self._open()

    def phase(self, name: str) -> None:
        """Show what the trainer does from now on."""
        self._view.enter(name)

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        """Show how many rollouts are done."""
        self._view.rollouts = (done, total, evaluating)

    def step(self, metrics: Metrics) -> None:
        """Show a finished step."""
        self._view.finish(metrics)
        if self._live is None:
            self._say(step_line(metrics, self._view.max_steps))

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Show a held-out evaluation."""
        self._view.evaluated(step, metrics["eval/reward/mean"])
        self._say(evaluation_line(step, metrics))

    def sample(self, trace: Trace) -> None:
        """Print a conversation with its tool calls and reward."""
        self._say(sample_panel(trace))

    def note(self, text: str) -> None:
        """Print a note in full, and keep the newest ones in the live region."""
        self._view.notes.append(visible(text))
        self._say(note_line(visible(text)))

    def stop(self) -> None:
        """Leave the last state on the terminal, and its cursor visible. Safe to call twice."""
        self._heartbeat.stop()
        if self._live is not None:
            self._view.ended = True
            self._live.transient = not self._view.began
            with suppress(OSError):  # the terminal may be gone
                self._live.stop()
            self._live = None

    def _open(self) -> bool:
        """Start the live region where there can be one, else the heartbeat; returns which."""
        if self._live is None and not self._view.ended and _can_draw(self.console):
            self._live = Live(
                console=self.console,
                get_renderable=lambda: self._view,
                refresh_per_second=4,
                vertical_overflow="crop",
            )
            self._live.start()
        if self._live is None:
            self._heartbeat.start()
        return self._live is not None

    def _say(self, line: Text | Panel) -> None:
        """Print, with a line of text unwrapped; a terminal that is gone ends no run."""
        console, unwrapped = self.console, isinstance(line, Text)
        self._heartbeat.spoke()
        with suppress(OSError):
            if console.encoding.startswith("utf"):
                console.print(line, soft_wrap=unwrapped)
                return
            with console.capture() as captured:
                console.print(line, soft_wrap=unwrapped)
            text = captured.get().encode(console.encoding, "replace")
            console.file.write(text.decode(console.encoding))
            console.file.flush()


def _can_draw(console: Console) -> bool:
    if not console.is_interactive or not console.encoding.startswith("utf"):
        return False
    try:
        return os.isatty(console.file.fileno())  # FORCE_COLOR makes rich take a file for a terminal
    except (OSError, ValueError):
        return False
