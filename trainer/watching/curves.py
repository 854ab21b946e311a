"""Which metrics a report draws, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vf.trainer.run.metrics import Metrics
from vf.trainer.watching.alarms import CORRELATION, KL_THRESHOLD
from vf.trainer.watching.charts import Axis, percent, short

COMPONENTS = 24  # that are drawn at most
KINDS = ("penalty/", "gate/", "part/", "metric/", "reward/outcome")

REWARD = Axis(lambda value: f"{value:.2f}", low=0.0, high=1.0)
SHARE = Axis(percent, low=0.0, high=1.0)
SMALL_SHARE = Axis(percent, low=0.0)
NUMBER = Axis(short)
AMOUNT = Axis(short, low=0.0)

_ALARMS = {
    "kl": "sampler and learner disagree: the sampled tokens came from another distribution than "
    "the one that is trained",
    "length": "reward and length go together",
    "errors": "reward goes together with failed tool calls",
    "outcome": "the outcome fell while the reward rose",
    "rewrites": "most calls of the agent began a new context instead of extending one",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One small chart.

    Attributes:
        title: Its name.
        metrics: What it shows: each metric by the name of its curve.
        axis: How y is shown.
    """

    title: str
    metrics: dict[str, str]
    axis: Axis


CURVES = [
    Curve("Success rate", {"training": "success_rate", "held out": "eval/success_rate"}, SHARE),
    Curve("Loss", {"": "loss"}, NUMBER),
    Curve("Gradient norm", {"": "grad_norm"}, AMOUNT),
    Curve(
        "KL of sampler and learner",
        {"v1": "kl_sample_train_v1"},
        Axis(short, lines={KL_THRESHOLD: f"alarm at ±{KL_THRESHOLD:g}", -KL_THRESHOLD: ""}),
    ),
    Curve("Entropy", {"": "entropy"}, AMOUNT),
    Curve("Clipped tokens", {"": "clip_fraction"}, SMALL_SHARE),
    Curve("Tokens sampled per rollout", {"": "tokens/completion_mean"}, AMOUNT),
    Curve("Turns per rollout", {"": "turns/mean"}, AMOUNT),
    Curve("Branches per rollout", {"": "branches_per_rollout"}, AMOUNT),
    Curve("Failed tool calls", {"": "tool_calls/error_rate"}, SMALL_SHARE),
    Curve("Truncated rollouts", {"": "truncated_fraction"}, SMALL_SHARE),
    Curve("Staleness, in versions", {"mean": "staleness/mean", "max": "staleness/max"}, AMOUNT),
    Curve(
        "Tokens per second",
        {"generated": "tokens_per_s/generate", "trained": "tokens_per_s/train"},
        AMOUNT,
    ),
    Curve("Groups without spread", {"": "groups/uniform_fraction"}, SHARE),
    Curve("Useful groups per second", {"": "groups_per_s/effective"}, AMOUNT),
    Curve("Seconds per step", {"": "time/total"}, AMOUNT),
]


def environment_curves(names: Sequence[str]) -> list[Curve]:
    """Return the chart of each environment's rewards, where there are several."""
    if len(names) == 1:
        return []
    keys = {"training": "reward/mean", "held out": "eval/reward/mean"}
    return [
        Curve(f"Reward: {name}", {kind: f"env/{name}/{key}" for kind, key in keys.items()}, NUMBER)
        for name in names
    ]


def pass_curves(lines: Sequence[Metrics]) -> list[Curve]:
    """Return the chart of the held-out tasks' pass@k, if the lines have any."""
    kind = "eval/pass@"
    ks = sorted(
        {int(name[len(kind) :]) for line in lines for name in line if name.startswith(kind)}
    )
    metrics = {f"k = {k}": f"{kind}{k}" for k in ks}
    return [Curve("Held out: pass@k", metrics, SHARE)] if metrics else []


def component_curves(lines: Sequence[Metrics]) -> list[Curve]:
    """Return a chart for each component of the score that the last lines have, named by kind."""
    names: dict[str, None] = {}
    for line in lines[-50:]:
        for name, value in line.items():
            if value is not None and name.startswith(KINDS):
                names.setdefault(name)
    return [Curve(name, {"": name}, NUMBER) for name in list(names)[:COMPONENTS]]


def ringing(lines: Sequence[Metrics]) -> list[str]:
    """Say of each alarm that ever rang what it means, how often it rang, and when last."""
    rang: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("alarm/") and value is not None and abs(value) >= CORRELATION:
                rang.setdefault(name.removeprefix("alarm/"), []).append(line["step"])
    said = []
    for name, steps in sorted(rang.items(), key=lambda each: -each[1][-1]):
        often = f"in {len(steps)} steps, last in step" if len(steps) > 1 else "in step"
        meaning = f": {_ALARMS[name]}" if name in _ALARMS else ""
        said.append(f"{name}, {often} {steps[-1]:g}{meaning}. logs/trainer.log says what to check.")
    return said
