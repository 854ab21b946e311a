"""Plain lines: what a run says where there is no screen to draw on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from vf.traces.trace import Trace
from vf.traces.view.plain import visible
from vf.trainer.watching.display.conversation import ROLE_STYLE, outcome
from vf.trainer.watching.display.foreground import unstoppable
from vf.trainer.watching.display.numbers import number_line

if TYPE_CHECKING:
    from vf.trainer.run.metrics import Metrics

_SAID = 400  # characters of a message in a sample


def step_line(metrics: Metrics, max_steps: int) -> Text:
    """Return a finished step on one line."""
    step = int(metrics["step"])
    done = min(20, round(20 * step / max(1, max_steps)))
    bar = "█" * done + "░" * (20 - done)
    return Text(f"{bar} step {step:>4}/{max_steps}  {number_line(metrics)}")


def evaluation_line(step: int, metrics: Metrics) -> Text:
    """Return a held-out evaluation on one line."""
    reward = f"held-out reward after step {step}: {metrics['eval/reward/mean']:.3f}"
    success = metrics.get("eval/success_rate")
    return Text.assemble((reward, "bold"), "" if success is None else f" (success {success:.0%})")


def note_line(text: str) -> Text:
    """Return a note, in full."""
    return Text.assemble(("note:", "yellow"), f" {visible(text)}")


def sample_panel(trace: Trace) -> Panel:
    """Return one conversation with its tool calls and reward, long messages cut."""
    lines: list[Text] = []
    for message in trace.messages:
        if message.role == "system":
            continue
        said = message.content
        for call in message.tool_calls:
            said += f"{' ' if said else ''}→ {call.name or '?'}({call.arguments})"
        role = Text(f"{message.role:>9}  ", style="bold")
        lines.append(role.append(visible(said[:_SAID]), style=ROLE_STYLE[message.role]))
    return Panel(Group(*lines), title=Text(outcome(trace)), title_align="left")


def say(console: Console, *lines: Text | Panel) -> None:
    """Print, a line of text unwrapped, and be it in the background of a terminal."""
    with unstoppable():
        for line in lines:
            if console.encoding.startswith("utf"):
                console.print(line, soft_wrap=isinstance(line, Text))
                continue
            with console.capture() as captured:
                console.print(line, soft_wrap=isinstance(line, Text))
            text = captured.get().encode(console.encoding, "replace")
            console.file.write(text.decode(console.encoding))
            console.file.flush()
