"""Progress of an evaluation: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vf.evaluation.tally import Tally
from vf.runtime.heartbeat import SECONDS, Heartbeat
from vf.runtime.terminal import BAD
from vf.traces.trace import Trace


@dataclass(slots=True)
class _Now:
    """What this process has done, as against what it found in the folder."""

    started: float
    resumed: int
    tokens: int = 0
    done: int = 0


class Progress:
    """Shows how far an evaluation is.

    Args:
        console: The console to print on; stderr usually, so that stdout holds the results alone.
        line_seconds: Seconds of silence before a line, where the console is no terminal.
    """

    def __init__(self, console: Console, line_seconds: float = SECONDS) -> None:
        self.console = console
        self._heartbeat = Heartbeat(self._print, self._line, line_seconds)
        self._live: Live | None = None
        self._tallies: Sequence[Tally] = ()
        self._shown: Tally | None = None
        self._now = _Now(time.monotonic(), 0)
        self._waited = self._loading = ""
        self._last_error = ""
        self._images: Callable[[], list[str]] = list

    def images(self, look: Callable[[], list[str]]) -> None:
        """Show from now on what has happened to the images that tasks bring.

        Args:
            look: Returns a line for each engine; called in any thread.
        """
        self._images = look

    def say(self, text: str) -> None:
        """Say something; what an engine waits for comes several times a second."""
        waiting = " is starting, " in text
        if waiting and text.split(":")[-1] == self._waited:
            return
        self._waited = text.split(":")[-1] if waiting else ""
        self._loading = text if text.endswith(" ...") else ""
        self._print(text)

    def _print(self, text: str) -> None:
        self._heartbeat.spoke()
        self.console.print(text, soft_wrap=True)

    def start(self, tallies: Sequence[Tally]) -> None:
        """Begin, counting what an earlier run has finished."""
        self._tallies = tallies
        resumed = sum(tally.done for tally in tallies)
        self._now = _Now(time.monotonic(), resumed)
        if resumed:
            total = sum(tally.rollouts for tally in tallies)
            self.say(f"resuming: {resumed} of {total} rollouts are done")
        if self.console.is_terminal and resumed < sum(tally.rollouts for tally in tallies):
            self._live = Live(
                console=self.console, get_renderable=self._table, refresh_per_second=4
            )
            self._live.start()
        if self._live is None:
            self._heartbeat.start()

    def rollout(self, tally: Tally, trace: Trace) -> None:
        """Count a rollout that finished just now."""
        now = self._now
        now.done += 1
        now.tokens += trace.completion_tokens
        self._shown = tally
        if trace.error is not None:
            self._last_error = f"{trace.error.boundary}: {trace.error.message}"
        if tally.done == tally.rollouts and self._live is None:
            self._print(self._line())

    def stop(self) -> None:
        """End the live display. Safe to call twice."""
        self._heartbeat.stop()
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._now.started

    @property
    def eta(self) -> float | None:
        """Seconds that the rest will take at the pace so far; None before the first rollout."""
        now = self._now
        if not now.done:
            return None
        left = sum(tally.rollouts for tally in self._tallies) - now.resumed - now.done
        return self.seconds / now.done * max(0, left)

    def _numbers(self) -> str:
        tally, now = self._shown, self._now
        if tally is None:
            return self._loading or "no rollout has finished yet"
        parts = [f"reward {tally.reward.mean:.3f}" if tally.reward.count else "reward –"]
        if tally.reward.count and tally.done > tally.reward.count:
            parts.append(f"({tally.reward.over(tally.done):.3f} with not scored = 0)")
        if tally.success.count:
            parts.append(f"success {tally.success.mean:.1%}")
        parts.append(f"{now.tokens / max(self.seconds, 1e-9):,.0f} tokens/s")
        costs = [tally.cost for tally in self._tallies if tally.cost is not None]
        if costs:
            cost = sum(costs)
            parts.append("cost unknown" if math.isnan(cost) else f"cost {cost:.4f}")
        failed = sum(tally.failed for tally in self._tallies)
        parts.append(f"{failed} errors")
        return "  ".join(parts)

    def _counts(self) -> str:
        done = sum(tally.done for tally in self._tallies)
        total = sum(tally.rollouts for tally in self._tallies)
        eta = self.eta
        left = "" if eta is None else f", {clock(eta)} left"
        return f"{done}/{total} rollouts  {clock(self.seconds)}{left}"

    def _line(self) -> str:
        where = f"{self._shown.environment} · {self._shown.model}" if self._shown else ""
        return "  ".join([self._counts(), where, self._numbers(), *self._images()])

    def _table(self) -> Group:
        done = sum(tally.done for tally in self._tallies)
        total = sum(tally.rollouts for tally in self._tallies)
        table = Table.grid(padding=(0, 1))
        where = f"{self._shown.environment} · {self._shown.model}" if self._shown else ""
        table.add_row(ProgressBar(total, done, width=30), self._counts())
        numbers = Text.assemble((where, "bold"), "  " * bool(where), self._numbers())
        images = [Text(line, overflow="ellipsis", no_wrap=True) for line in self._images()]
        error = Text(self._last_error.splitlines()[0] if self._last_error else "", style=BAD)
        error.truncate(max(10, self.console.width - 2), overflow="ellipsis")
        return Group(table, numbers, *images, *([error] if self._last_error else []))


def clock(seconds: float) -> str:
    """Return seconds as people read them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
