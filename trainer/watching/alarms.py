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
  percentage points, while the mean reward does: see :mod:`~vf.trainer.watching.voids`.
- *rewrites*: half of a step's calls, or more, start a new context instead of extending one: an
  agent rewrites its history, and all of it is computed again.
- *kl*: sampler and learner disagree: KL(sampler ‖ learner) is above 0.01 nats.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, variance
from typing import Any

from vf.inference.model import filters_used
from vf.traces.branching import OFTEN, Branching
from vf.traces.trace import Trace
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.voids import StepVoids, association, share_of, worst_tasks

ROLLOUTS = 512  # the newest, over which correlations are computed
MIN_ROLLOUTS = 256  # below which there is no correlation
STEPS = 20  # the newest; a trend compares their first half with their second
CORRELATION = 0.8
KL_THRESHOLD = 0.01  # nats, of any of the three estimates
VOID_STEPS = 64  # the newest, over which voids are compared between tasks
VOID_ERRORS = 3.0  # standard errors
VOID_RISE = 0.02  # of their share; less is not worth a note
_QUIET = 0.1  # how far below its threshold an alarm ends, so that it does not flicker

_ADVICE = {
    "length": (
        "reward and length go together (ρ = {value:+.2f} over the last {count} rollouts): read "
        "some traces. If the task does not call for it, the outcome may be judging length; see "
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
    "rewrites": "{said}",
    "voids": (
        "{share:.1%} of the rollouts of the last {count} steps ended without a reward, {how}. They "
        "are in no mean, so a model that brings them about instead of failing looks better than it "
        "is: with them as 0, the reward is {as_zero:.3f} instead of {reward:.3f}. Most are of the "
        "tasks {tasks}; see logs/environment.log and their traces"
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
        self._voids = deque((StepVoids(**each) for each in voids), maxlen=VOID_STEPS)

    def state(self) -> dict[str, Any]:
        """Return the arguments of an equal instance, as JSON values."""
        return {
            "ringing": sorted(self.ringing),
            "rollouts": list(self._rollouts),
            "steps": list(self._steps),
            "voids": [asdict(each) for each in self._voids],
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
        self._voids.append(StepVoids.of(groups))
        steps = [*self._voids]
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

    def _ring(self, name: str, level: float, threshold: float, **said: Any) -> list[str]:
        if level < threshold - _QUIET:
            self.ringing.discard(name)
        if level < threshold or name in self.ringing:
            return []
        self.ringing.add(name)
        return [_ADVICE[name].format(**said)]


def _voids_rise(steps: Sequence[StepVoids]) -> bool:
    """Return whether the share of voids and the mean reward both rise over the last steps."""
    last = [(step.share, step.reward) for step in steps[-STEPS:] if step.reward is not None]
    if len(last) < STEPS:
        return False
    shares, rewards = zip(*last, strict=True)
    return _change(shares, VOID_ERRORS) >= VOID_RISE and _change(rewards) > 0.0


def observe_kl(
    ringing: set[str],
    metrics: Mapping[str, float],
    args: TrainerArgs,
    others: Sequence[TrainerArgs] = (),
    *,
    supported: bool = False,
) -> tuple[dict[str, float], list[str]]:
    """Check how far a step's learner was from its sampler.

    Args:
        ringing: The alarms that are on; ``kl`` is added or removed.
        metrics: The step's, with ``kl_sample_train_v1`` to ``_v3`` if anything was trained.
        args: ``[trainer.args]``; the note names only checks that apply to it.
        others: The same, as they are in each environment.
        supported: Whether the engine told which tokens its filters left.

    Returns:
        The metric ``alarm/kl``: 1 while it rings, else 0. And a note when it begins.
    """
    worst = max(abs(metrics.get(f"kl_sample_train_v{kind}", 0.0)) for kind in (1, 2, 3))
    if worst <= KL_THRESHOLD:
        ringing.discard("kl")
        return {"alarm/kl": 0.0}, []
    if "kl" in ringing:
        return {"alarm/kl": 1.0}, []
    ringing.add("kl")
    causes = _kl_causes(metrics, args, others, supported=supported)
    checks = _kl_checks(metrics)
    found = f"Likely cause: {causes[0]}" if causes else "No setting explains it"
    rest = "; ".join(f"({place}) {check}" for place, check in enumerate(causes[1:] + checks, 1))
    return {"alarm/kl": 1.0}, [
        f"kl_sample_train is {worst:.3g} nats, above the threshold of {KL_THRESHOLD:g}: the tokens "
        f"were sampled from another distribution than the one that is trained. {found}. Check in "
        f"this order: {rest}"
    ]


def _kl_causes(
    metrics: Mapping[str, float],
    args: TrainerArgs,
    others: Sequence[TrainerArgs],
    *,
    supported: bool,
) -> list[str]:
    """Return possible reasons for the disagreement, the likeliest first."""
    checks = []
    used = filters_used(*(others or [args]))
    if used and not supported:
        checks.append(
            f"{', '.join(used)} leaves out tokens, and the engine did not tell which: it changes "
            "what is sampled and not what is trained; set it neutral"
        )
    if _is_of_engine(metrics):
        checks.append(
            f"the engine computes differently (logprob_gap = {metrics['logprob_gap']:.2g} nats, "
            "with the same weights): look at its dtype, quantisation, adapter and template; `vf-rl "
            "mismatch` on the run's TOML tells what rounding explains"
        )
    stale = metrics.get("staleness/mean", 0.0)
    if stale > 0:
        checks.append(
            f"tokens were {stale:.2g} versions old on average: max_steps_off_policy = 0 makes "
            "them new, a lower learning_rate or a clipped loss bears it better"
        )
    if args.num_iterations > 1:
        checks.append(
            f"num_iterations = {args.num_iterations} trains on a batch again with weights that "
            "have moved: use a clipped loss, or lower it"
        )
    if args.num_substeps > 1:
        checks.append(
            f"num_substeps = {args.num_substeps} trains on tokens of older weights: lower it or "
            "learning_rate, or use a clipped loss"
        )
    return checks


def _is_of_engine(metrics: Mapping[str, float]) -> bool:
    """Return whether what the engine computes differently makes at least half of the KL's v2.

    The mean of a size is at most the root of the mean square, so it makes ½·gap² at least.
    """
    gap, kl = metrics.get("logprob_gap"), metrics.get("kl_sample_train_v2")
    return gap is not None and kl is not None and gap * gap >= kl


def _kl_checks(metrics: Mapping[str, float]) -> list[str]:
    """Return what is worth a look whatever the cause is."""
    gap = metrics.get("logprob_gap")
    checks = []
    if gap is not None and not _is_of_engine(metrics):
        checks.append(
            f"logprob_gap = {gap:.2g} nats is what engine and trainer differ by with the same "
            "weights, on a probe: too little, unless the rollouts are unlike the probe"
        )
    return [
        *checks,
        "ratio/p99 and ratio/max: whether few tokens make it, or all; `vf-rl mismatch RUN` shows "
        "which",
    ]


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
