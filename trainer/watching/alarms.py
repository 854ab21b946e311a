"""Alarms: signs, seen in the rewards themselves, that the reward is being gamed.

Within a group of rollouts, only differences of reward teach. So each quantity is taken less its
mean over the group, and what is left is compared over the last rollouts. Groups whose rewards are
all equal teach nothing and count nowhere.

- *length*: reward and sampled tokens go together, one way or the other (|ρ| ≥ 0.8).
- *errors*: reward goes together with failed tool calls (ρ ≥ 0.8). That errors lower the reward
  is as it should be.
- *outcome*: over the last steps, the mean outcome falls while the mean reward rises, each by more
  than twice the standard error of its change. Then penalties are what is learnt.

ρ is Spearman's rank correlation. An alarm is a reason to read some traces; in a task that needs
long answers, length rings rightly and harmlessly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean, variance
from typing import Any

from vf.traces.trace import Trace
from vf.trainer.run.group import Group

ROLLOUTS = 512  # that a correlation looks back on
MIN_ROLLOUTS = 256  # before it says anything
STEPS = 20  # that a trend looks back on; its first half is compared with its second
CORRELATION = 0.8
_QUIET = 0.1  # how far below that an alarm ends, lest it ring at every other step

_ADVICE = {
    "length": (
        "reward and length go together (ρ = {value:+.2f} over the last {count} rollouts): read "
        "some traces. If the task does not ask for it, the outcome may be judging length; see "
        "verbosity and shorter in docs/rewards.md"
    ),
    "errors": (
        "reward goes together with failed tool calls (ρ = {value:+.2f} over the last {count} "
        "rollouts): read some traces. What an error achieves may be paid for; see tool_errors in "
        "docs/rewards.md"
    ),
    "outcome": (
        "over the last {count} steps the outcome fell while the reward rose: penalties are being "
        "avoided at the outcome's cost. Lower their weights or the cap"
    ),
}


class Alarms:
    """Watches the rewards of a run.

    Args:
        ringing: The alarms that are on.
        rollouts: Reward, sampled tokens and failed calls of the last rollouts, each less its
            group's mean.
        steps: Mean outcome and mean reward of the last steps.
    """

    def __init__(
        self,
        ringing: Iterable[str] = (),
        rollouts: Iterable[Sequence[float]] = (),
        steps: Iterable[Sequence[float]] = (),
    ) -> None:
        self.ringing = set(ringing)
        self._rollouts = deque(map(tuple, rollouts), maxlen=ROLLOUTS)
        self._steps = deque(map(tuple, steps), maxlen=STEPS)

    def state(self) -> dict[str, Any]:
        """Return all that is remembered, as JSON takes it: the arguments of another one."""
        return {
            "ringing": sorted(self.ringing),
            "rollouts": list(self._rollouts),
            "steps": list(self._steps),
        }

    def observe(self, groups: Sequence[Group]) -> tuple[dict[str, float], list[str]]:
        """Look at a step's rollouts.

        Returns:
            Metrics: ``alarm/length`` and ``alarm/errors`` are the correlations, in [−1, 1] (0
            until there are enough rollouts), ``alarm/outcome`` is 1 while it rings, else 0. And
            what is to be said aloud: one text for every alarm that begins.
        """
        for group in groups:
            if not group.uniform:
                self._add(group.traces)
        scores = [t.score for group in groups for t in group.traces if t.score is not None]
        outcomes = [score.outcome for score in scores if score.outcome is not None]
        rewards = [score.reward for score in scores if score.reward is not None]
        if outcomes and rewards:
            self._steps.append((fmean(outcomes), fmean(rewards)))
        count, length, errors = len(self._rollouts), 0.0, 0.0
        if count >= MIN_ROLLOUTS:
            of_reward, of_length, of_errors = zip(*self._rollouts, strict=True)
            length, errors = spearman(of_reward, of_length), spearman(of_reward, of_errors)
        falls = self._outcome_falls()
        notes = [
            *self._ring("length", abs(length), CORRELATION, value=length, count=count),
            *self._ring("errors", errors, CORRELATION, value=errors, count=count),
            *self._ring("outcome", float(falls), 1.0, value=0.0, count=len(self._steps)),
        ]
        metrics = {"alarm/length": length, "alarm/errors": errors, "alarm/outcome": float(falls)}
        return metrics, notes

    def _add(self, traces: Sequence[Trace]) -> None:
        rewards = _centred([trace.reward or 0.0 for trace in traces])
        lengths = _centred([trace.completion_tokens for trace in traces])
        errors = _centred(
            [sum(event.kind != "ok" for event in trace.tool_events) for trace in traces]
        )
        self._rollouts.extend(zip(rewards, lengths, errors, strict=True))

    def _outcome_falls(self) -> bool:
        if len(self._steps) < STEPS:
            return False
        outcomes, rewards = zip(*self._steps, strict=True)
        return _change(outcomes) < 0.0 < _change(rewards)

    def _ring(
        self, name: str, level: float, threshold: float, *, value: float, count: int
    ) -> list[str]:
        if level < threshold - _QUIET:
            self.ringing.discard(name)
        if level < threshold or name in self.ringing:
            return []
        self.ringing.add(name)
        return [_ADVICE[name].format(value=value, count=count)]


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Spearman's rank correlation, ties sharing their mean rank; 0 without spread."""
    a, b = _centred(_ranks(xs)), _centred(_ranks(ys))
    norm = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / norm if norm else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    # Differences of rounding alone, as centring leaves them, are ties.
    values = [round(value, 9) for value in values]
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + end - 1) / 2
        start = end
    return ranks


def _centred(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    return [value - mean for value in values]


def _change(values: Sequence[float]) -> float:
    """Return by how much the second half's mean differs; 0 within two standard errors."""
    half = len(values) // 2
    before, after = values[:half], values[half:]
    change = fmean(after) - fmean(before)
    error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return change if abs(change) > max(2.0 * error, 1e-6) else 0.0
