"""Alarms: signs in a step's metrics that its reward or its samples cannot be trusted.

An alarm is a reason to read some traces. In a task that needs long answers, *length* goes off
harmlessly. Within a group of rollouts only differences in reward teach, so *length* and *errors*
compare each quantity after subtracting its mean over the group. Groups whose rewards are all equal
do not count. ρ is Spearman's rank correlation.

- *length*: reward and sampled tokens correlate over the last rollouts (|ρ| ≥ 0.8).
- *errors*: reward correlates with failed tool calls (ρ ≥ 0.8). Errors that lower the reward are
  expected.
- *outcome*: over the last steps, the mean outcome falls while the mean reward rises, each by more
  than twice the standard error of its change: the model learns to avoid penalties instead.
- *voids*: rollouts without a reward are more frequent in tasks with lower rewards (Mantel's test, z
  ≥ 3 over the last steps), or their share rises, by more than three standard errors and two
  percentage points, while the mean reward does: see :mod:`~vf.trainer.watching.missing_rewards`.
- *rewrites*: half of a step's calls, or more, start a new context instead of extending one: an
  agent rewrites its history, and all of it is computed again.
- *kl*: sampler and learner disagree: KL(sampler ‖ learner) is above 0.01 nats.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import Any

from vf.traces.branching import OFTEN, Branching
from vf.traces.trace import Trace
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics, by_environment
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.kl_alarm import observe_kl
from vf.trainer.watching.missing_rewards import StepVoids, association, share_of, worst_tasks

ROLLOUTS = 512  # the newest, over which correlations are computed
MIN_ROLLOUTS = 256  # below which there is no correlation
STEPS = 20  # the newest; a trend compares their first half with their second
CORRELATION = 0.8
VOID_STEPS = 64  # the newest, over which voids are compared between tasks
VOID_ERRORS = 3.0  # standard errors
VOID_RISE = 0.02  # of their share; less is not worth a note
_QUIET = 0.1  # how far below its threshold an alarm ends, so that it does not flicker


@dataclass(frozen=True, slots=True)
class Alarm:
    """A sign that a run's reward or samples cannot be trusted.

    Attributes:
        meaning: What it says of the run, as the page shows it.
        note: What the log and the display show when it begins; that of *kl* is composed.
    """

    meaning: str
    note: str = ""


ALARMS = {
    "length": Alarm(
        "reward and length go together",
        "reward and length go together (ρ = {value:+.2f} over the last {count} rollouts): read "
        "some traces. If the task does not call for it, the outcome may be judging length; see "
        "verbosity and shorter in docs/rewards.md",
    ),
    "errors": Alarm(
        "reward goes together with failed tool calls",
        "reward goes together with failed tool calls (ρ = {value:+.2f} over the last {count} "
        "rollouts): read some traces. What an error achieves may be paid for; see tool_errors in "
        "docs/rewards.md",
    ),
    "outcome": Alarm(
        "the outcome fell while the reward rose",
        "over the last {count} steps the outcome fell while the reward rose: penalties are being "
        "avoided at the outcome's cost. Lower their weights or the cap",
    ),
    "rewrites": Alarm(
        "most calls of the agent began a new context instead of extending one",
        "{said}",
    ),
    "voids": Alarm(
        "rollouts end without a reward where they would have failed",
        "{share:.1%} of the rollouts of the last {count} steps ended without a reward, {how}. They "
        "are in no mean, so a model that brings them about instead of failing looks better than it "
        "is: with them as 0, the reward is {as_zero:.3f} instead of {reward:.3f}. Most are of the "
        "tasks {tasks}; see logs/environment.log and their traces",
    ),
    "kl": Alarm(
        "sampler and learner disagree: the sampled tokens came from another distribution than the "
        "one that is trained",
    ),
}


class Alarms:
    """Watches the rewards of a run.

    Args:
        ringing: The alarms that are on.
        rollouts: Reward, sampled tokens and failed calls of the last rollouts, each less its
            group's mean.
        steps: Mean outcome and mean reward of the last steps.
        voids: The :class:`StepVoids` of the last steps, as dicts.
    """

    def __init__(
        self,
        ringing: Iterable[str] = (),
        rollouts: Iterable[Sequence[float]] = (),
        steps: Iterable[Sequence[float]] = (),
        voids: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.ringing = set(ringing)
        self._rollouts = deque(map(tuple, rollouts), maxlen=ROLLOUTS)
        self._steps = deque(map(tuple, steps), maxlen=STEPS)
        self._missing_rewards = deque((StepVoids(**void) for void in voids), maxlen=VOID_STEPS)

    def state(self) -> dict[str, Any]:
        """Return the arguments of an equal instance, as JSON values."""
        return {
            "ringing": sorted(self.ringing),
            "rollouts": list(self._rollouts),
            "steps": list(self._steps),
            "voids": [asdict(void) for void in self._missing_rewards],
        }

    def observe(self, groups: Sequence[Group]) -> tuple[dict[str, float], list[str]]:
        """Add a step's rollouts.

        Returns:
            Metrics: ``alarm/length`` and ``alarm/errors`` are the correlations, in [−1, 1] (0
            until there are enough rollouts), ``alarm/outcome``, ``alarm/rewrites`` and
            ``alarm/voids`` are 1 while they ring, else 0. And a note for every alarm that begins.
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
            *self._ring("outcome", float(falls), 1.0, count=len(self._steps)),
        ]
        branching = Branching.of(trace for group in groups for trace in group.traces)
        notes += self._ring("rewrites", branching.share, OFTEN, said=branching.complaint)
        metrics = {"alarm/length": length, "alarm/errors": errors, "alarm/outcome": float(falls)}
        metrics["alarm/rewrites"] = float("rewrites" in self.ringing)
        notes += self._observe_voids(groups)
        return metrics | {"alarm/voids": float("voids" in self.ringing)}, notes

    def _observe_voids(self, groups: Sequence[Group]) -> list[str]:
        self._missing_rewards.append(StepVoids.of(groups))
        steps = [*self._missing_rewards]
        z, rises = association(steps), _voids_rise(steps)
        how = (
            f"more often where the others of the step did better (z = {z:.1f})"
            if z >= VOID_ERRORS
            else "and their share rose together with the reward"
        )
        rewards = [step.reward for step in steps if step.reward is not None]
        reward, share = fmean(rewards) if rewards else 0.0, share_of(steps)
        return self._ring(
            "voids",
            max(z / VOID_ERRORS, float(rises)),
            1.0,
            count=len(steps),
            how=how,
            share=share,
            reward=reward,
            as_zero=reward * (1.0 - share),
            tasks=worst_tasks(steps),
        )

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

    def _ring(self, name: str, level: float, threshold: float, **values: Any) -> list[str]:
        if level < threshold - _QUIET:
            self.ringing.discard(name)
        if level < threshold or name in self.ringing:
            return []
        self.ringing.add(name)
        return [ALARMS[name].note.format(**values)]


def _voids_rise(steps: Sequence[StepVoids]) -> bool:
    """Return whether the share of voids and the mean reward both rise over the last steps."""
    last = [(step.share, step.reward) for step in steps[-STEPS:] if step.reward is not None]
    if len(last) < STEPS:
        return False
    shares, rewards = zip(*last, strict=True)
    return _change(shares, VOID_ERRORS) >= VOID_RISE and _change(rewards) > 0.0


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


def _change(values: Sequence[float], errors: float = 2.0) -> float:
    """Return by how much the second half's mean differs; 0 within so many standard errors."""
    half = len(values) // 2
    before, after = values[:half], values[half:]
    change = fmean(after) - fmean(before)
    error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return change if abs(change) > max(errors * error, 1e-6) else 0.0


class RunAlarms:
    """Watches the rewards of each environment; they are not comparable between environments.

    Args:
        args: By the environment's name, ``[trainer.args]`` as they are there.
    """

    def __init__(self, args: Mapping[str, TrainerArgs]) -> None:
        self._args = args
        self._of = {name: Alarms() for name in args}
        self._ringing: set[str] = set()  # those of the whole run

    def observe(
        self, groups: Sequence[Group], metrics: Metrics, args: TrainerArgs
    ) -> tuple[Metrics, list[str]]:
        """Add a step's rollouts.

        Args:
            groups: The step's.
            metrics: The same step's.
            args: ``[trainer.args]``.

        Returns:
            The alarms' metrics: of each environment, and of all the one that is farthest from 0.
            And a note for every alarm that begins.
        """
        by_name: dict[str, Metrics] = {}
        notes: list[str] = []
        for name, alarms in self._of.items():
            own = [group for group in groups if group.environment == name]
            if not own and len(self._of) > 1:
                continue  # the step has none of its tasks
            by_name[name], kl_notes = alarms.observe(own)
            notes += [f"{name}: {note}" if len(self._of) > 1 else note for note in kl_notes]
        worst = {
            key: max((own_metrics[key] for own_metrics in by_name.values()), key=abs)
            for key in next(iter(by_name.values()), {})
        }
        supported = any(
            branch.supports
            for group in groups
            for trace in group.traces
            for branch in trace.branches
        )
        others = [*self._args.values()]
        kl, kl_notes = observe_kl(self._ringing, metrics, args, others, supported=supported)
        return by_environment(by_name, len(self._of)) | worst | kl, notes + kl_notes

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            "ringing": sorted(self._ringing),
            "environments": {name: alarms.state() for name, alarms in self._of.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume; an environment that was not there begins without a past."""
        saved = dict(state.get("environments", {}))
        if "rollouts" in state:  # as it was written when a run had one environment
            saved = {next(iter(self._of)): state}
        self._ringing = {"kl"} & set(state.get("ringing", []))
        for name in self._of.keys() & saved.keys():
            self._of[name] = Alarms(**saved[name])


def ringing(lines: Sequence[Metrics]) -> list[str]:
    """Say of each alarm that ever rang what it means, how often it rang, and when last."""
    rang: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("alarm/") and value is not None and abs(value) >= CORRELATION:
                rang.setdefault(name.removeprefix("alarm/"), []).append(line["step"])
    sentences = []
    for name, steps in sorted(rang.items(), key=lambda item: -item[1][-1]):
        often = f"in {len(steps)} steps, last in step" if len(steps) > 1 else "in step"
        meaning = f": {ALARMS[name].meaning}" if name in ALARMS else ""
        sentences.append(
            f"{name}, {often} {steps[-1]:g}{meaning}. logs/trainer.log says what to check."
        )
    return sentences
