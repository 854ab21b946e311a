"""What a run shows while it runs: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from vf.traces.trace import Trace
from vf.trainer.watching.metrics import Metrics

WAITING_SECONDS = 15.0  # between lines about what is waited for, where the output is a file

_BLOCKS = "▁▂▃▄▅▆▇█"
_ROLE_STYLE = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


class Display(Protocol):
    """What the trainer tells."""

    def waiting(self, text: str) -> None: ...
    def start(self, step: int, max_steps: int) -> None: ...
    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None: ...
    def step(self, metrics: Metrics) -> None: ...
    def evaluation(self, step: int, metrics: Metrics) -> None: ...
    def sample(self, trace: Trace) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


class SilentDisplay:
    """Shows nothing."""

    def waiting(self, text: str) -> None:
        """Ignore."""

    def start(self, step: int, max_steps: int) -> None:
        """Ignore."""

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        """Ignore."""

    def step(self, metrics: Metrics) -> None:
        """Ignore."""

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Ignore."""

    def sample(self, trace: Trace) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def stop(self) -> None:
        """Ignore."""


class TerminalDisplay:
    """A live status on a terminal; a line per step where the output is a pipe or a file."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._waiting: Status | None = None
        self._said_waiting = float("-inf")
        self._rewards: list[float] = []
        self._metrics: Metrics = {}
        self._step = 0
        self._first_step = 0
        self._max_steps = 1
        self._rollouts = (0, 1, False)
        self._started = time.monotonic()

    def waiting(self, text: str) -> None:
        """Say what is being waited for; it may change several times a second."""
        if self.console.is_terminal:
            if self._waiting is None:
                self._waiting = self.console.status("")
                self._waiting.start()
            self._waiting.update(escape(text[: self.console.width - 4]))
        elif time.monotonic() - self._said_waiting > WAITING_SECONDS:
            self._said_waiting = time.monotonic()
            self.console.print(escape(text[:160]), soft_wrap=True)

    def start(self, step: int, max_steps: int) -> None:
        """Begin at a step."""
        self._end_waiting()
        self._step = self._first_step = step
        self._max_steps = max_steps
        self._started = time.monotonic()
        if self.console.is_terminal:
            self._live = Live(
                console=self.console, get_renderable=self._status, refresh_per_second=4
            )
            self._live.start()

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        """Show how far the rollouts of this step are."""
        self._rollouts = (done, total, evaluating)

    def step(self, metrics: Metrics) -> None:
        """Show a finished step."""
        self._metrics, self._step = metrics, int(metrics["step"])
        if "reward/mean" in metrics:
            self._rewards.append(metrics["reward/mean"])
        if self._live is None:
            done = round(20 * self._step / self._max_steps)
            bar = "█" * done + "░" * (20 - done)
            line = f"{bar} step {self._step:>4}/{self._max_steps}  {self._numbers()}"
            self.console.print(line, soft_wrap=True)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Show a held-out evaluation."""
        self.console.print(
            f"[bold]held-out reward after step {step}: {metrics['eval/reward/mean']:.3f}[/bold] "
            f"(success {metrics.get('eval/success_rate', float('nan')):.0%})"
        )

    def sample(self, trace: Trace) -> None:
        """Show one conversation with its tool calls and reward."""
        lines: list[Text] = []
        for message in trace.messages:
            if message.role == "system":
                continue
            said = message.content
            for call in message.tool_calls:
                said += f"{' ' if said else ''}→ {call.name or '?'}({call.arguments})"
            style = _ROLE_STYLE[message.role]
            lines.append(Text(f"{message.role:>9}  ", style="bold").append(said[:400], style=style))
        unscored = "not scored" if trace.error is None else "failed"
        reward = unscored if trace.reward is None else f"reward {trace.reward:.2f}"
        panel = Panel(Group(*lines), title=escape(f"{trace.task.id}: {reward}"), title_align="left")
        self.console.print(panel)

    def note(self, text: str) -> None:
        """Say something that the user should know."""
        self.console.print(f"[yellow]note:[/yellow] {escape(text)}", soft_wrap=True)

    def stop(self) -> None:
        """End the live status. Safe to call twice."""
        self._end_waiting()
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _end_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    def _status(self) -> Table:
        done, total, evaluating = self._rollouts
        within = 0.0 if evaluating else done / total
        table = Table.grid(padding=(0, 1))
        spent = time.monotonic() - self._started
        steps = self._step - self._first_step
        left = f", {spent / steps * (self._max_steps - self._step):.0f} s left" if steps else ""
        phase = "evaluating" if evaluating else "rollouts"
        table.add_row(
            ProgressBar(self._max_steps, self._step + within, width=30),
            f"step {self._step}/{self._max_steps}  {phase} {done}/{total}  {spent:.0f} s{left}",
        )
        table.add_row(sparkline(self._rewards, 30), self._numbers())
        return table

    def _numbers(self) -> str:
        metrics = self._metrics
        if not metrics:
            return ""
        parts = [f"reward {metrics.get('reward/mean', float('nan')):.3f}"]
        if "loss" in metrics:
            parts.append(f"loss {metrics['loss']:+.4f}")
        if metrics.get("groups/uniform_fraction"):
            parts.append(f"{metrics['groups/uniform_fraction']:.0%} of groups without signal")
        parts.append(f"{metrics['tokens_per_s/generate']:,.0f} tok/s generated")
        parts.append(f"{metrics['tokens_per_s/train']:,.0f} trained")
        return "  ".join(parts)


def sparkline(values: list[float], width: int) -> str:
    """Return the last ``width`` values, each in [0, 1], as a line of blocks."""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * min(1.0, max(0.0, v)))] for v in values[-width:])
