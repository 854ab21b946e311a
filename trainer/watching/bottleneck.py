"""Where a run's time goes, and which setting would save some of it.

Every training line of ``metrics.jsonl`` has the seconds of its step by part, ``time/generate`` to
``time/wait``, which sum up to ``time/total``. The part that took most is the bottleneck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from vf.trainer.run.metrics import Metrics
from vf.trainer.settings.config import Config
from vf.trainer.watching.bottleneck_advice import advise
from vf.trainer.watching.step_clock import PARTS

STEPS = 20  # that a verdict looks back on

_NAMES = {
    "generate": "generating",
    "environment": "the environment",
    "reward": "scoring",
    "train": "training",
    "publish": "bringing new weights to the engine",
    "evaluate": "held-out evaluation",
    "save": "saving checkpoints",
    "outage": "waiting for a server that was down",
    "wait": "waiting",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run spent its time on lately.

    Attributes:
        steps: How many steps were looked at.
        seconds: Mean wall time of one of them.
        shares: What part of that went where, in [0, 1], by the names in :data:`PARTS`; they sum
            up to 1. Empty if no step has told yet.
        bottleneck: The part with the largest share, or None.
        advice: What it is, in a sentence, and which settings may help, the likeliest first.
    """

    steps: int
    seconds: float
    shares: dict[str, float]
    bottleneck: str | None
    advice: list[str]


def verdict(lines: Sequence[Metrics], config: Config) -> Verdict:
    """Judge the last steps of a run.

    Args:
        lines: Lines of ``metrics.jsonl``, in order. Those without times are passed over, and so is
            the first step, which warms everything up, as soon as there are three others.
        config: The run's settings: what is advised depends on them.
    """
    timed = (line for line in reversed(lines) if _spent(line))
    last = list(islice(timed, STEPS))
    if len(last) > 3 and last[-1].get("step") == 1:
        last.pop()
    total = sum(_spent(line) for line in last)
    if not total:
        return Verdict(0, 0.0, {}, None, [])
    spent = {part: sum(line.get(f"time/{part}") or 0.0 for line in last) for part in PARTS}
    shares = {part: seconds / total for part, seconds in spent.items() if seconds > 0}
    bottleneck = max(shares, key=shares.__getitem__)
    seconds = total / len(last)
    summary = (
        f"{_NAMES[bottleneck].capitalize()} takes {shares[bottleneck]:.0%} of a step's "
        f"{seconds:.3g} s"
    )
    means = _means(last)
    return Verdict(
        steps=len(last),
        seconds=seconds,
        shares=shares,
        bottleneck=bottleneck,
        advice=[f"{summary}.", *advise(bottleneck, shares, seconds, means, config)],
    )


def _spent(line: Metrics) -> float:
    """Return the seconds that a line accounts for, by part."""
    return sum(line.get(f"time/{part}") or 0.0 for part in PARTS)


def _means(lines: Sequence[Metrics]) -> Metrics:
    """Return every metric's mean over the lines that have it."""
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: fmean(own_values) for name, own_values in values.items()}
