"""What the learning benchmark found: the curves, as a table, as a plot, and in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

LABELS = {"ours": "vf-rl", "trl": "TRL GRPOTrainer"}
COLOURS = {"ours": "#1f6feb", "trl": "#d1690e"}


@dataclass(slots=True)
class Curve:
    """How one contender learned.

    Attributes:
        name: ``ours`` or ``trl``.
        startup_s: Seconds from a fresh process to the first step.
        step_seconds: Wall time of each step.
        train_rewards: Mean reward of each step's rollouts.
        steps: Steps done at each held-out evaluation; the first is 0.
        held_out: Mean held-out reward at each.
        adapters: The adapter at each but the first.
    """

    name: str
    startup_s: float
    step_seconds: list[float] = field(default_factory=list)
    train_rewards: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=lambda: [0])
    held_out: list[float] = field(default_factory=list)
    adapters: list[Path] = field(default_factory=list)

    def add(self, seconds: Sequence[float], rewards: Sequence[float], adapter: Path) -> None:
        """Add the steps up to the next evaluation."""
        self.step_seconds += seconds
        self.train_rewards += rewards
        self.steps.append(len(self.step_seconds))
        self.adapters.append(adapter)

    @property
    def total_seconds(self) -> float:
        """Wall time of all steps."""
        return sum(self.step_seconds)

    @property
    def seconds(self) -> list[float]:
        """Wall time at each evaluation."""
        elapsed = [0.0, *accumulate(self.step_seconds)]
        return [elapsed[step] for step in self.steps]

    def seconds_to(self, reward: float) -> float | None:
        """Return when the held-out reward first got there, between two evaluations on a line.

        None if it never did.
        """
        points = list(zip(self.seconds, self.held_out, strict=True))
        if points[0][1] >= reward:
            return 0.0
        for (before, low), (after, high) in pairwise(points):
            if high >= reward:
                return before + (after - before) * (reward - low) / (high - low)
        return None


def table(ours: Curve, trl: Curve, batch_size: int) -> str:
    """Return the evaluations as Markdown."""
    lines = [
        "| rollouts | ours: held-out reward | after (s) | TRL: held-out reward | after (s) |",
        "|---|---|---|---|---|",
    ]
    for index, step in enumerate(ours.steps):
        cells = [f"{step * batch_size:,}"]
        for curve in (ours, trl):
            cells += [f"{curve.held_out[index]:.3f}", f"{curve.seconds[index]:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(ours: Curve, trl: Curve, rollouts: int, reward: float) -> dict[str, Any]:
    """Return the figures for the last line.

    ``ratio`` is TRL's seconds over ours to the held-out reward; over all rollouts instead, and
    ``ratio_of`` says so, if one of the two never got there.
    """
    reached = {curve.name: curve.seconds_to(reward) for curve in (ours, trl)}
    mine, theirs = reached["ours"], reached["trl"]
    if mine and theirs is not None:
        ratio, of = theirs / mine, f"seconds to a held-out reward of {reward:g}"
    else:
        missing = " and ".join(LABELS[name] for name, at in reached.items() if at is None)
        why = f"{missing} never reached {reward:g}" if missing else "it was there at the start"
        ratio = trl.total_seconds / ours.total_seconds
        of = f"seconds of all rollouts ({why} in a held-out evaluation)"
    curves = {curve.name: curve for curve in (ours, trl)}
    return {
        "ratio": round(ratio, 3),
        "ratio_of": of,
        "seconds_to_reward": {k: None if v is None else round(v, 1) for k, v in reached.items()},
        "reward_at_start": round(ours.held_out[0], 4),
        "reward_at_end": {k: round(c.held_out[-1], 4) for k, c in curves.items()},
        "seconds_per_rollout": {k: round(c.total_seconds / rollouts, 4) for k, c in curves.items()},
        "total_seconds": {k: round(c.total_seconds, 1) for k, c in curves.items()},
        "startup_s": {k: round(c.startup_s, 1) for k, c in curves.items()},
        "step_s": {k: [round(s, 2) for s in c.step_seconds] for k, c in curves.items()},
        "held_out": {k: [round(r, 4) for r in c.held_out] for k, c in curves.items()},
        "train": {k: [round(r, 4) for r in c.train_rewards] for k, c in curves.items()},
        "steps": ours.steps,
    }


def plot(curves: Sequence[Curve], batch_size: int, reward: float, path: Path) -> None:
    """Draw held-out reward (lines) and training reward (dots) over rollouts and over wall time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_rollouts, by_time) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for curve in curves:
        look = {"color": COLOURS[curve.name]}
        rollouts = [step * batch_size for step in curve.steps]
        every = [batch_size * (step + 1) for step in range(len(curve.step_seconds))]
        by_rollouts.plot(rollouts, curve.held_out, "o-", label=LABELS[curve.name], **look)
        by_rollouts.plot(every, curve.train_rewards, ".", alpha=0.35, **look)
        elapsed = list(accumulate(curve.step_seconds))
        by_time.plot(curve.seconds, curve.held_out, "o-", label=LABELS[curve.name], **look)
        by_time.plot(elapsed, curve.train_rewards, ".", alpha=0.35, **look)
    by_rollouts.set_xlabel("rollouts")
    by_time.set_xlabel("wall time (s)")
    by_rollouts.set_ylabel("mean reward (line: held out; dots: training)")
    for axes in (by_rollouts, by_time):
        axes.axhline(reward, color="0.6", linewidth=0.8, linestyle="--")
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.25)
    by_rollouts.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
