"""The display of `vf-rl`: a live region on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
from contextlib import suppress

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from vf.runtime.heartbeat import Heartbeat
from vf.runtime.terminal import ACCENT, CAUTION, GOOD, QUIET, figure, make_console, note_line
from vf.runtime.visible import visible
from vf.traces.trace import Trace
from vf.trainer.run.display import Display
from vf.trainer.run.metrics import Metrics
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
        console: The console to print to; stdout by default.
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


SHOWN_CHARACTERS = 400  # of a message in a sample

_COLUMNS = [
    ("loss", "loss", "{:+.4f}", 7),
    ("tokens_per_s/generate", "tok/s generated", "{:,.0f}", 6),
    ("tokens_per_s/train", "trained", "{:,.0f}", 7),
]
_ROLE_STYLES = {"system": QUIET, "user": ACCENT, "assistant": GOOD, "tool": CAUTION}


def step_line(metrics: Metrics, max_steps: int) -> Text:
    """Return a finished step as one line.

    Args:
        metrics: The step's metrics.
        max_steps: The step after which the run ends.
    """
    step = int(metrics["step"])
    done = min(20, round(20 * step / max(1, max_steps)))
    parts = [
        f"{'█' * done}{'░' * (20 - done)} step {step:>4}/{max_steps}",
        f"reward {metrics.get('reward/mean', math.nan):.3f}",
    ]
    # In columns of one width, so that a number is below that of the step before.
    for name, word, form, width in _COLUMNS:
        if name in metrics:
            parts.append(f"{word} {figure(metrics[name], form):>{width}}")
    if "kl_teacher_v1" in metrics:
        parts.append(f"KL to teacher {metrics['kl_teacher_v1']:.3f}")
    elif metrics.get("groups/uniform_fraction"):
        parts.append(f"{metrics['groups/uniform_fraction']:.0%} of groups without signal")
    if (branches := metrics.get("branches_per_rollout", 1.0)) != 1.0:
        parts.append(f"{branches:.3g} branches a rollout")
    return Text("  ".join(parts))


def evaluation_line(step: int, metrics: Metrics) -> Text:
    """Return a held-out evaluation as one line.

    Args:
        step: The training steps done before it.
        metrics: The step's metrics.
    """
    reward = f"held-out reward after step {step}: {metrics['eval/reward/mean']:.3f}"
    figures = {"success": metrics.get("eval/success_rate")}
    ks = [int(name.removeprefix("eval/pass@")) for name in metrics if name.startswith("eval/pass@")]
    if ks:
        figures[f"pass@{max(ks)}"] = metrics[f"eval/pass@{max(ks)}"]
    shares = ", ".join(
        f"{name} {share:.0%}" for name, share in figures.items() if share is not None
    )
    own = {
        name.removeprefix("env/").removesuffix("/eval/reward/mean"): value
        for name, value in metrics.items()
        if name.startswith("env/") and name.endswith("/eval/reward/mean")
    }
    by_environment = "; " * bool(own) + ", ".join(
        f"{visible(name)} {own[name]:.3f}" for name in own
    )
    return Text.assemble((reward, "bold"), f" ({shares})" if shares else "", by_environment)


def sample_panel(trace: Trace) -> Panel:
    """Return a conversation with its tool calls and reward; long messages are cut."""
    lines = []
    for message in trace.messages:
        if message.role == "system":
            continue
        text = message.content
        for call in message.tool_calls:
            text += f"{' ' if text else ''}→ {call.name or '?'}({call.arguments})"
        line = Text(f"{message.role:>9}  ", style="bold")
        line.append(visible(text[:SHOWN_CHARACTERS]), style=_ROLE_STYLES[message.role])
        lines.append(line)
    return Panel(Group(*lines), title=Text(_outcome(trace)), title_align="left")


def _outcome(trace: Trace) -> str:
    unscored = "not scored" if trace.error is None else "failed"
    reward = unscored if trace.reward is None else f"reward {trace.reward:.2f}"
    stop = f"  {trace.stop_reason.value}" if trace.stop_reason is not None else ""
    if (count := len(trace.conversations)) > 1:
        stop += f"  the last of {count} conversations"
    return f"{visible(trace.task.id)}: {reward}{stop}".replace("\n", " ")
