"""A run as plain lines: steps, held-out evaluations, notes and sample conversations."""

from __future__ import annotations

import math

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from vf.runtime.terminal import ACCENT, CAUTION, GOOD, QUIET, figure
from vf.runtime.visible import visible
from vf.traces.trace import Trace
from vf.trainer.run.metrics import Metrics

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
        metrics: Its metrics.
    """
    reward = f"held-out reward after step {step}: {metrics['eval/reward/mean']:.3f}"
    said = {"success": metrics.get("eval/success_rate")}
    ks = [int(name.removeprefix("eval/pass@")) for name in metrics if name.startswith("eval/pass@")]
    if ks:
        said[f"pass@{max(ks)}"] = metrics[f"eval/pass@{max(ks)}"]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in said.items() if share is not None)
    own = {
        name.removeprefix("env/").removesuffix("/eval/reward/mean"): value
        for name, value in metrics.items()
        if name.startswith("env/") and name.endswith("/eval/reward/mean")
    }
    each = "; " * bool(own) + ", ".join(f"{visible(name)} {own[name]:.3f}" for name in own)
    return Text.assemble((reward, "bold"), f" ({shares})" if shares else "", each)


def sample_panel(trace: Trace) -> Panel:
    """Return a conversation with its tool calls and reward; long messages are cut."""
    lines = []
    for message in trace.messages:
        if message.role == "system":
            continue
        said = message.content
        for call in message.tool_calls:
            said += f"{' ' if said else ''}→ {call.name or '?'}({call.arguments})"
        line = Text(f"{message.role:>9}  ", style="bold")
        line.append(visible(said[:SHOWN_CHARACTERS]), style=_ROLE_STYLES[message.role])
        lines.append(line)
    return Panel(Group(*lines), title=Text(_outcome(trace)), title_align="left")


def _outcome(trace: Trace) -> str:
    unscored = "not scored" if trace.error is None else "failed"
    reward = unscored if trace.reward is None else f"reward {trace.reward:.2f}"
    stop = f"  {trace.stop_reason.value}" if trace.stop_reason is not None else ""
    if (count := len(trace.conversations)) > 1:
        stop += f"  the last of {count} conversations"
    return f"{visible(trace.task.id)}: {reward}{stop}".replace("\n", " ")
