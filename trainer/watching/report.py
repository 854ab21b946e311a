"""`report.html`: curves, where the time went, settings and sampled traces, in one file.

It opens offline and runs no script: a policy in it forbids any, and every text of a trace is
escaped.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace
from vf.traces.view.write_page import ASSETS
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.write_config import to_toml, without_secrets
from vf.trainer.watching.charts import Point, Series, escape, figure, short, stacked_bar
from vf.trainer.watching.conversations import choose, render
from vf.trainer.watching.curves import (
    CURVES,
    REWARD,
    component_curves,
    environment_curves,
    pass_curves,
    ringing,
)
from vf.trainer.watching.plan_text import describe
from vf.trainer.watching.step_clock import PARTS
from vf.trainer.watching.verdict import verdict

log = logging.getLogger(__name__)

SECONDS = 5.0  # between two writings, at least
SHARE = 0.02  # of a run's time that writing may take at most

_POLICY = "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style></head><body>
<header class="top"><h1>{title}</h1><p>{subtitle}</p><div class="tiles">{tiles}</div></header>
{sections}
</body></html>
"""


class Report:
    """Writes a run's report while it runs, seldom enough to cost next to nothing.

    Args:
        folder: The run's.
        plan: What is run.
    """

    def __init__(self, folder: RunFolder, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._next = 0.0
        self._warned = False

    def update(self, *, final: bool = False) -> bool:
        """Write the report, if it is time to; returns whether it did.

        Args:
            final: Write it in any case: the run ends, well or badly.
        """
        started = time.monotonic()
        if not final and started < self._next:
            return False
        try:
            write_report(self._folder, self._plan)
        except (OSError, ConfigError) as error:  # a full disk is no reason to stop training
            if not self._warned:
                log.warning("the report cannot be written: %s; the run continues", error)
            self._warned = True
            return False
        finally:
            ended = time.monotonic()
            self._next = ended + max(SECONDS, (ended - started) / SHARE)
        return True


def write_report(folder: RunFolder, plan: Plan) -> None:
    """Write the report of what the run's folder holds by now, whole or not at all.

    Raises:
        OSError: The disk is full, or the folder cannot be written to.
    """
    lines = folder.read_metrics()
    config = without_secrets(plan.config)
    sheets = (ASSETS / "view.css", Path(__file__).with_name("report.css"))
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    steps = [line for line in lines if "reward/mean" in line or "time/total" in line]
    done = int(steps[-1]["step"]) if steps else 0
    page = _PAGE.format(
        policy=_POLICY.format(style=digest),
        style=style,
        title=escape(folder.path.name),
        subtitle=escape(
            f"{config.model} in {', '.join(env.id for env in config.env)}. "
            f"Step {done:,} of {config.args.max_steps:,}, "
            f"written {time.strftime('%Y-%m-%d %H:%M:%S')}"
        ),
        tiles=_tiles(lines),
        sections="".join(
            [
                _rewards(lines),
                _alarms(lines),
                _time(lines, plan),
                _curves(lines, [each.name for each in plan.environments]),
                _traces(folder, done, lines),
                _section("Plan", _table(describe(plan))),
                _section("Settings", f"<pre>{escape(to_toml(config))}</pre>"),
                _numbers(steps[-1]) if steps else "",
            ]
        ),
    )
    temporary = folder.report.with_suffix(".tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(folder.report)
    finally:
        temporary.unlink(missing_ok=True)


def points(lines: Sequence[Metrics], name: str) -> list[Point]:
    """Return a metric over steps, where it has a value."""
    return [(line["step"], value) for line in lines if (value := line.get(name)) is not None]


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>\n" if body else ""


def _tiles(lines: Sequence[Metrics]) -> str:
    """Return the few numbers that are asked for first."""
    held_out, rewards = points(lines, "eval/reward/mean"), points(lines, "reward/mean")
    tiles = []
    if held_out:
        first, last = held_out[0][1], held_out[-1][1]
        change = f"{first:.3f} → {last:.3f}" if len(held_out) > 1 else f"{last:.3f}"
        tiles.append((change, f"held-out reward, after step {held_out[-1][0]:g}"))
        best = max(held_out, key=lambda point: point[1])
        tiles.append((f"{best[1]:.3f}", f"best of them, after step {best[0]:g}"))
    if rewards:
        tiles.append((f"{rewards[-1][1]:.3f}", f"training reward in step {rewards[-1][0]:g}"))
    if seconds := points(lines, "time/total"):
        tiles.append((f"{seconds[-1][1]:.3g} s", "for the last step"))
    if sampled := points(lines, "tokens/sampled"):
        tiles.append((short(sum(value for _, value in sampled)), "tokens sampled for training"))
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in tiles
    )


def _end(lines: Sequence[Metrics]) -> float:
    return max((line["step"] for line in lines), default=0) or 1


def _rewards(lines: Sequence[Metrics]) -> str:
    series = [
        Series("training", points(lines, "reward/mean")),
        Series("held out", points(lines, "eval/reward/mean"), dotted=True),
    ]
    if not any(each.points for each in series):
        return _section("Reward", "<p>No step has ended yet.</p>")
    return _section("Reward", figure("Mean reward", series, REWARD, _end(lines), wide=True))


def _alarms(lines: Sequence[Metrics]) -> str:
    said = "".join(f"<li>{escape(text)}</li>" for text in ringing(lines))
    return _section("Alarms", f'<div class="alarms"><ul>{said}</ul></div>') if said else ""


def _time(lines: Sequence[Metrics], plan: Plan) -> str:
    found = verdict(lines, plan.config)
    if found.bottleneck is None:
        return ""
    # Every part keeps its colour, whichever others there are.
    bar = stacked_bar({part: found.shares.get(part, 0.0) for part in PARTS})
    advice = "".join(f"<li>{escape(text)}</li>" for text in found.advice[1:])
    steps = f"last {found.steps} steps" if found.steps > 1 else "last step"
    return _section(
        "Where the time goes",
        f"{bar}<p>{escape(found.advice[0])} (Over the {steps}.)</p>"
        f'<ul class="advice">{advice}</ul>',
    )


def _curves(lines: Sequence[Metrics], environments: Sequence[str]) -> str:
    drawn = []
    for curve in [*environment_curves(environments), *CURVES, *pass_curves(lines)]:
        series = [
            Series(name, points(lines, key), dotted=key.startswith("eval/") or "/eval/" in key)
            for name, key in curve.metrics.items()
        ]
        if any(each.points for each in series):
            drawn.append(figure(curve.title, series, curve.axis, _end(lines), wide=False))
    main = f'<div class="curves">{"".join(drawn)}</div>' if drawn else ""
    parts = "".join(
        figure(
            curve.title,
            [Series(name, points(lines, key)) for name, key in curve.metrics.items()],
            curve.axis,
            _end(lines),
            wide=False,
        )
        for curve in component_curves(lines)
    )
    if parts:
        main += (
            '<details class="more"><summary>Components of the score</summary>'
            f'<div class="curves">{parts}</div></details>'
        )
    return _section("Curves", main)


def _traces(folder: RunFolder, done: int, lines: Sequence[Metrics]) -> str:
    groups: list[tuple[str, list[tuple[str, Trace]]]] = []
    if done:
        groups.append((f"Of step {done}", choose(folder.step_traces(done).path)))
    if held_out := points(lines, "eval/reward/mean"):
        after = int(held_out[-1][0])
        groups.append((f"Held out, after step {after}", choose(folder.eval_traces(after).path)))
    body = "".join(
        f'<h3 class="group">{escape(title)}</h3>{render(chosen)}'
        for title, chosen in groups
        if chosen
    )
    if body:
        command = escape(f"vf-rl view {folder.path}")
        body += f'<p class="faint">All of them, token by token: <code>{command}</code></p>'
    return _section("Sampled traces", body)


def _numbers(line: Metrics) -> str:
    pairs = [(name, "n/a" if value is None else f"{value:.4g}") for name, value in line.items()]
    return (
        f'<details class="more"><summary>All numbers of step {line["step"]:g}</summary>'
        f'<div class="columns">{_table(pairs)}</div></details>'
    )


def _table(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in pairs
    )
    return f'<table class="table">{rows}</table>'
