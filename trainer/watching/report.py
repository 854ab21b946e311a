"""`report.html`: the run's curves, settings and held-out results in one file that opens offline."""

from __future__ import annotations

import html
from collections.abc import Sequence

from vf.trainer.preflight import Plan
from vf.trainer.saving.run_folder import RunFolder

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 280, 44, 28, 12

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2rem auto;
  padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
text {{ font-size: 11px; fill: currentColor; }}
.grid {{ stroke: currentColor; stroke-opacity: .15; }}
.train {{ fill: none; stroke: #3b82f6; stroke-width: 1.8; }}
.eval {{ fill: none; stroke: #f97316; stroke-width: 1.8; stroke-dasharray: 5 3; }}
.dot {{ fill: #f97316; }}
table {{ border-collapse: collapse; }}
td {{ padding: .15rem .8rem .15rem 0; vertical-align: top; }}
td:first-child {{ font-weight: 600; white-space: nowrap; }}
pre {{ overflow-x: auto; padding: .8rem; border: 1px solid #8884; border-radius: 6px; }}
</style></head><body>
<h1>{title}</h1>
<h2>Reward</h2>
<p><span style="color:#3b82f6">━ training</span>, <span style="color:#f97316">┅ held out</span></p>
{chart}
<h2>Numbers</h2><table>{numbers}</table>
<h2>Plan</h2><table>{plan}</table>
<h2>Settings</h2><pre>{settings}</pre>
</body></html>
"""


def write_report(folder: RunFolder, plan: Plan) -> None:
    """Write the report of what ``metrics.jsonl`` holds by now, whole or not at all."""
    lines = folder.read_metrics()
    train = [(line["step"], line["reward/mean"]) for line in lines if "reward/mean" in line]
    held_out = [
        (line["step"], line["eval/reward/mean"]) for line in lines if "eval/reward/mean" in line
    ]
    last = lines[-1] if lines else {}
    page = _PAGE.format(
        title=html.escape(f"{folder.path.name}: {plan.config.model} in {plan.config.env.id}"),
        chart=reward_chart(train, held_out),
        numbers=_rows([(k, f"{v:.4g}") for k, v in last.items() if v is not None]),
        plan=_rows(plan.describe()),
        settings=html.escape(folder.config.read_text() if folder.config.exists() else ""),
    )
    temporary = folder.report.with_suffix(".tmp")
    temporary.write_text(page)
    temporary.replace(folder.report)


def reward_chart(
    train: Sequence[tuple[float, float]], held_out: Sequence[tuple[float, float]]
) -> str:
    """Return the reward curves over steps as inline SVG; rewards lie in [0, 1]."""
    last = max([step for step, _ in [*train, *held_out]], default=1) or 1

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 10) * step / last

    def y(reward: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - reward)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x(step):.1f},{y(reward):.1f}" for step, reward in points)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="reward over steps">']
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y(tick)}" y2="{y(tick)}"/>'
            f'<text x="8" y="{y(tick) + 4}">{tick:.2f}</text>'
        )
    for tick in sorted({0, round(last / 2), round(last)}):
        parts.append(f'<text x="{x(tick) - 8:.1f}" y="{_HEIGHT - 8}">{tick}</text>')
    parts.append(f'<polyline class="train" points="{path(train)}"/>')
    parts.append(f'<polyline class="eval" points="{path(held_out)}"/>')
    for step, reward in held_out:
        parts.append(
            f'<circle class="dot" cx="{x(step):.1f}" cy="{y(reward):.1f}" r="4">'
            f"<title>step {step:g}: {reward:.3f}</title></circle>"
        )
    return "".join([*parts, "</svg>"])


def _rows(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in pairs
    )
