"""Running totals over the traces of one model in one environment, without keeping them.

Memory grows with the tasks, not with the rollouts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from vf.evaluation.estimators import UNIT, Estimate, mean_of_tasks, pass_at_k, pass_hat_k
from vf.runtime.json_output import finite
from vf.traces.branching import OFTEN, Branching
from vf.traces.simulated_users import STOPPED, UserRecord, user_of
from vf.traces.trace import Score, StopReason, Trace

SOLVED = 1.0  # the outcome of a rollout that is a success


@dataclass(slots=True)
class _Sum:
    """A sum, without rounding, and how many it is of."""

    total: Fraction = Fraction(0)
    count: int = 0
    in_unit: bool = True  # whether every value is between 0 and 1

    def add(self, value: float) -> None:
        self.total += Fraction(value)
        self.count += 1
        self.in_unit = self.in_unit and 0.0 <= value <= 1.0

    @property
    def mean(self) -> float:
        return self.over(self.count)

    def over(self, count: int) -> float:
        return float(self.total / count)


@dataclass(slots=True)
class _TaskTally:
    """One task's rollouts, of which ``unscored`` have no reward, for whatever reason."""

    unscored: int = 0
    reward: _Sum = field(default_factory=_Sum)
    success: _Sum = field(default_factory=_Sum)
    components: dict[str, _Sum] = field(default_factory=dict)


@dataclass(slots=True)
class UserUse:
    """What the simulated users of all rollouts took; no part of the policy's figures.

    Attributes:
        requests: How often they were asked.
        prompt_tokens: As their server counts them.
        completion_tokens: Tokens that they sampled.
        seconds: Spent waiting for them, summed over rollouts, which run side by side.
        unanswered: Rollouts that ended because the policy left them without an answer.
        cost: By the price table; None without a price of theirs, NaN if tokens were not counted.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    unanswered: int = 0
    cost: float | None = None

    def add(self, user: UserRecord, trace: Trace) -> None:
        """Count one rollout's."""
        self.requests += user.requests
        self.prompt_tokens += user.prompt_tokens
        self.completion_tokens += user.completion_tokens
        self.seconds += trace.timing.get("user", 0.0)
        self.unanswered += user.ended not in (None, STOPPED)
        self.cost = _add_cost(self.cost, trace, "user_cost")


def _add_cost(total: float | None, trace: Trace, key: str) -> float | None:
    """Add a rollout's cost, which is recorded as None where its tokens were not counted."""
    costs = trace.info.get("eval", {})
    if key not in costs:
        return total
    return (total or 0.0) + (math.nan if costs[key] is None else costs[key])


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of one model in one environment.

    Attributes:
        environment: Its name.
        model: Its name.
        tasks: Tasks asked for.
        rollouts: Rollouts asked for.
        scored: Rollouts with a reward; all means but two are over these.
        failed: Rollouts that an error left without one.
        unscored: Rollouts that the rubric left without one.
        reward: Mean reward.
        success: Share of rollouts whose outcome is 1.
        reward_of_all: Mean reward if the rollouts that were not scored count as 0, be they failed
            or left without a reward. A model that causes failures where it would lose is seen by
            it.
        success_of_all: The same for successes.
        pass_at: By k: the probability that one of k rollouts succeeds.
        pass_hat: By k: the probability that all of k rollouts succeed.
        components: Outcome, penalties, gates, parts and metrics, by name.
        stop_reasons: How often each.
        finish_reasons: How often each, of the model's answers.
        truncated: Rollouts that a limit ended.
        silent: Those of them that ``max_seconds`` ended before the model's first answer.
        errors: By boundary: how many, and what the first said.
        turns: Answers of the model, all rollouts.
        prompt_tokens: As the model's server counts them, summed over turns.
        completion_tokens: Tokens sampled.
        branches_per_rollout: Token sequences, or conversations where there are no tokens; 1 where
            every context grew.
        forks: How many of them began, by kind, all rollouts.
        rewriting: What is to be said of an agent most of whose calls begin a new context; None of
            others.
        seconds: By phase, summed over rollouts, which run side by side.
        cost: By the price table; None without one, NaN if tokens were not counted.
        user: What the simulated users took; None where no rollout had one.
    """

    environment: str
    model: str
    tasks: int
    rollouts: int
    scored: int
    failed: int
    unscored: int
    reward: Estimate
    success: Estimate
    reward_of_all: Estimate
    success_of_all: Estimate
    pass_at: dict[int, Estimate]
    pass_hat: dict[int, Estimate]
    components: dict[str, Estimate]
    stop_reasons: dict[str, int]
    finish_reasons: dict[str, int]
    truncated: int
    silent: int
    errors: dict[str, dict[str, Any]]
    turns: int
    prompt_tokens: int
    completion_tokens: int
    branches_per_rollout: float
    forks: dict[str, int]
    rewriting: str | None
    seconds: dict[str, float]
    cost: float | None
    user: UserUse | None

    @property
    def missing(self) -> int:
        """Rollouts that were asked for and have not been run."""
        return self.rollouts - self.scored - self.failed - self.unscored

    @property
    def flattered(self) -> bool:
        """Whether the means change if rollouts that were not scored count as 0."""
        return self.failed + self.unscored > 0 and (
            self.reward.mean != self.reward_of_all.mean
            or self.success.mean != self.success_of_all.mean
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON; a mean over nothing is None."""
        plain: dict[str, Any] = finite(asdict(self) | {"missing": self.missing})
        return plain


class Tally:
    """Adds traces up.

    Args:
        environment: Its name.
        model: Its name.
        tasks: Tasks asked for.
        rollouts_per_example: Rollouts asked for of each.
    """

    def __init__(self, environment: str, model: str, tasks: int, rollouts_per_example: int) -> None:
        self.environment = environment
        self.model = model
        self.tasks = tasks
        self.rollouts_per_example = rollouts_per_example
        self.reward = _Sum()
        self.success = _Sum()
        self.done = self.failed = self.unscored = self.truncated = self.silent = 0
        self.turns = self.prompt_tokens = self.completion_tokens = 0
        self.branching = Branching()
        self.cost: float | None = None
        self.user: UserUse | None = None
        self.stop_reasons: Counter[str] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.errors: dict[str, dict[str, Any]] = {}
        self.seconds: Counter[str] = Counter()
        self._by_task: dict[str, _TaskTally] = {}

    @property
    def rollouts(self) -> int:
        """How many rollouts were asked for."""
        return self.tasks * self.rollouts_per_example

    def add(self, trace: Trace) -> None:
        """Count one rollout."""
        self.done += 1
        self.truncated += trace.truncated
        self.silent += trace.stop_reason == StopReason.MAX_SECONDS and not trace.turns
        self.turns += len(trace.turns)
        self.prompt_tokens += sum(turn.prompt_tokens for turn in trace.turns)
        self.completion_tokens += trace.completion_tokens
        self.branching.add(trace)
        self.stop_reasons[str(trace.stop_reason)] += 1
        self.finish_reasons.update(turn.finish_reason for turn in trace.turns)
        self.seconds.update(trace.timing)
        self.cost = _add_cost(self.cost, trace, "cost")
        if (user := user_of(trace)) is not None:
            self.user = self.user or UserUse()
            self.user.add(user, trace)
        if trace.error is not None:
            self.failed += 1
            seen = self.errors.setdefault(
                trace.error.boundary, {"count": 0, "first": trace.error.message}
            )
            seen["count"] += 1
        elif trace.score is None or trace.score.reward is None:
            self.unscored += 1
        task = self._by_task.setdefault(trace.task.id, _TaskTally())
        if trace.error is None and trace.score is not None and trace.score.reward is not None:
            self._score(task, trace.score, trace.score.reward)
        else:
            task.unscored += 1

    def _score(self, task: _TaskTally, score: Score, reward: float) -> None:
        task.reward.add(reward)
        self.reward.add(reward)
        if score.outcome is not None:
            solved = float(score.outcome >= SOLVED)
            task.success.add(solved)
            self.success.add(solved)
        for name, value in _components(score).items():
            if value is not None and math.isfinite(value):
                task.components.setdefault(name, _Sum()).add(float(value))

    def summary(self) -> Summary:
        """Return what the traces so far add up to."""
        by_task = self._by_task.values()
        names = dict.fromkeys(name for task in by_task for name in task.components)
        return Summary(
            environment=self.environment,
            model=self.model,
            tasks=self.tasks,
            rollouts=self.rollouts,
            scored=self.reward.count,
            failed=self.failed,
            unscored=self.unscored,
            reward=self._mean(lambda task: task.reward),
            success=self._mean(lambda task: task.success),
            reward_of_all=self._mean(lambda task: task.reward, of_all=True),
            success_of_all=self._mean(lambda task: task.success, of_all=True),
            pass_at=self._passes(pass_at_k),
            pass_hat=self._passes(pass_hat_k),
            components={name: self._component(name) for name in names},
            stop_reasons=dict(self.stop_reasons.most_common()),
            finish_reasons=dict(self.finish_reasons.most_common()),
            truncated=self.truncated,
            silent=self.silent,
            errors=self.errors,
            turns=self.turns,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            branches_per_rollout=self.branching.per_rollout,
            forks=dict(self.branching.forks),
            rewriting=self.branching.complaint if self.branching.share >= OFTEN else None,
            seconds=dict(self.seconds),
            cost=self.cost,
            user=self.user,
        )

    def _mean(self, what: Callable[[_TaskTally], _Sum], *, of_all: bool = False) -> Estimate:
        """Return a mean over tasks; of all rollouts, those that were not scored count as 0."""
        sums = [
            (what(task), what(task).count + (task.unscored if of_all else 0))
            for task in self._by_task.values()
        ]
        return mean_of_tasks([total.over(count) for total, count in sums if count], bounds=UNIT)

    def _component(self, name: str) -> Estimate:
        """Return a component's mean. All but metrics are in [0, 1].

        A metric whose values are there too, and differ, is taken for a share.
        """
        sums = [t.components[name] for t in self._by_task.values() if name in t.components]
        values = [total.mean for total in sums]
        share = all(total.in_unit for total in sums) and len(set(values)) > 1
        bounds = UNIT if share or not name.startswith("metric/") else None
        return mean_of_tasks(values, bounds=bounds)

    def _passes(self, estimate: Callable[[int, int, int], float]) -> dict[int, Estimate]:
        """Return the estimates for k = 1, 2, 4, ... and the number of rollouts of a task.

        A task with fewer than k judged rollouts says nothing about k, and is counted as left out.
        """
        most = self.rollouts_per_example
        ks = sorted({most, *(2**power for power in range(most.bit_length()))})
        counts = [(t.success.count, round(t.success.total)) for t in self._by_task.values()]
        estimates = {}
        for k in ks:
            values = [estimate(n, c, k) for n, c in counts if n >= k]
            estimates[k] = mean_of_tasks(values, bounds=UNIT, left_out=self.tasks - len(values))
        return estimates


def _components(score: Score) -> Mapping[str, float | bool | None]:
    return {
        "outcome": score.outcome,
        **{f"penalty/{name}": value for name, value in score.penalties.items()},
        **{f"gate/{name}": value for name, value in score.gates.items()},
        **{f"part/{name}": value for name, value in score.parts.items()},
        **{f"metric/{name}": value for name, value in score.metrics.items()},
    }
