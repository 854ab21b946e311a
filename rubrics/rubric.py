"""The rubric: an outcome in [0, 1], reduced by bounded process penalties.

    taken  = min(cap, Σ wᵢ·pᵢ + Σ vⱼ·(1 − gⱼ))       outcome, pᵢ, gⱼ ∈ [0, 1], cap ≤ 0.5

    reward = 0                                        if a gate is violated
             floor + (1 − floor)·outcome·(1 − taken)  if outcome > 0
             floor·(1 − taken / cap)                  if outcome = 0

The pᵢ are penalties and the gⱼ group rewards. ``floor`` is 0 by default; the last two lines are
then ``outcome·(1 − taken)``. A penalty takes a share of what was earned. The reward is in [0, 1],
never falls when the outcome rises, never rises when a penalty does, and every failure (outcome 0)
stays at or below the floor, which every success exceeds.

A violated gate gives 0 even if the outcome is None. Otherwise an outcome of None means "not
scored": such a trace has no reward, is not trained on, and is counted. Penalties, gates, metrics
and group rewards that are None do not apply to this trace, and cost nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Never

from vf.rubrics.group import GroupReward, GroupScorer, apply_group_rewards
from vf.rubrics.scorers import (
    Part,
    Range,
    Scorer,
    blaming,
    by_name,
    check_scorer,
    name_of,
    values_of,
)
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, RubricError, did_you_mean
from vf.traces.trace import Score, Trace

MAX_FLOOR = 0.1
MAX_CAP = 0.5


@dataclass(frozen=True, slots=True)
class Penalty:
    """A process penalty: a function of the trace with values in [0, 1], and its weight.

    Attributes:
        fn: 0 is faultless, 1 is the worst; None if it does not apply.
        weight: Share of the outcome that a penalty of 1 costs, above 0 and at most 1.
        name: How it appears in scores; the function's name by default.
        turns: Which turns of the rollout caused it: a plain function of the trace that returns a
            weight of at least 0 for each turn. The penalty's cost is recorded by turn in proportion
            to these (``Score.turn_costs``), and with ``credit = "turn"`` the trainer assigns it to
            them; by default it is assigned to the last turn.
    """

    fn: Scorer
    weight: float = 0.1
    name: str = ""
    turns: Callable[[Trace], Sequence[float]] | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.weight <= 1.0:
            raise ConfigError(
                f"penalty {name_of(self.fn)!r}: weight must be above 0 and at most 1, "
                f"got {self.weight}"
            )


class Rubric:
    """Scores traces.

    Every list may also be a dict of name to function; a function's own name is used otherwise.

    Args:
        outcome: Takes the trace and returns how well the task was solved, in [0, 1], or None if
            that cannot be determined. Sync or async.
        penalties: :class:`Penalty` objects, or plain functions (weight 0.1).
        gates: Functions that return True, or False if the trace breaks a rule that voids it.
        metrics: Measured and recorded; never part of the reward. Any finite number.
        group_rewards: :class:`~vf.rubrics.group.GroupReward` objects, or plain functions (weight
            0.1), of the list of traces of one task. The shortfall from 1 counts as a penalty.
        cap: The largest share of the outcome that all penalties together can take, at most 0.5.
        floor: The reward of a failure without penalties, at most 0.1. For tasks that are too hard
            to give spread otherwise: failures then differ by their penalties. Giving up
            immediately has few penalties, so add one for it.

    Example::

        def correct(trace: vf.Trace) -> float:
            return float(trace.reply.strip() == trace.task.answer)

        rubric = vf.Rubric(outcome=correct, penalties=[vf.Penalty(extra_calls, weight=0.2)])

    Raises:
        ConfigError: If there is no outcome, the cap or the floor is out of range or without
            effect, a weight is above the cap, two functions of a kind share a name, or something
            is not a function of one trace.
    """

    def __init__(
        self,
        outcome: Scorer | None = None,
        penalties: Iterable[Penalty | Scorer] | Mapping[str, Penalty | Scorer] = (),
        gates: Iterable[Scorer] | Mapping[str, Scorer] = (),
        metrics: Iterable[Scorer] | Mapping[str, Scorer] = (),
        *,
        group_rewards: Iterable[GroupReward | GroupScorer]
        | Mapping[str, GroupReward | GroupScorer] = (),
        cap: float = MAX_CAP,
        floor: float = 0.0,
        **unknown: Never,
    ) -> None:
        if unknown or outcome is None or isinstance(outcome, list | tuple):
            raise ConfigError(_advice(outcome, unknown))
        check_scorer(outcome)
        self.outcome = outcome
        self.penalties = {
            name: entry if isinstance(entry, Penalty) else Penalty(entry)
            for name, entry in by_name("penalties", penalties, _name).items()
        }
        self.gates: dict[str, Scorer] = by_name("gates", gates)
        self.metrics: dict[str, Scorer] = by_name("metrics", metrics)
        self.group_rewards = group_rewards_by_name(group_rewards)
        self.cap = cap
        self.floor = floor
        self._parts = [Part(name_of(outcome), outcome)]
        self._parts += [
            Part(name, penalty.fn, worst=1.0) for name, penalty in self.penalties.items()
        ]
        self._parts += [Part(name, fn, Range.BOOL) for name, fn in self.gates.items()]
        self._parts += [
            Part(name, fn, Range.FINITE, worst=None) for name, fn in self.metrics.items()
        ]
        for part in self._parts:
            check_scorer(part.fn)
        self._check_weights()

    def _check_weights(self) -> None:
        cap, floor = self.cap, self.floor
        if not 0.0 <= cap <= MAX_CAP:
            raise ConfigError(f"cap must be in [0, {MAX_CAP}], got {cap}")
        if not 0.0 <= floor <= MAX_FLOOR:
            raise ConfigError(f"floor must be in [0, {MAX_FLOOR}], got {floor}")
        weights = {
            name: entry.weight for name, entry in (self.penalties | self.group_rewards).items()
        }
        if weights and cap == 0.0:
            raise ConfigError(
                f"cap = 0 leaves {', '.join(map(repr, weights))} without effect; raise the cap, or "
                "record them as metrics"
            )
        if floor and not weights:
            raise ConfigError(
                f"floor = {floor} gives every failure the same reward, because no penalty makes "
                "failures differ; add one, or remove the floor"
            )
        for name, weight in weights.items():
            if weight > cap:
                raise ConfigError(
                    f"{name!r}: its weight {weight} is above the cap {cap}, so all its values "
                    f"above {cap / weight:.2g} would cost the same; lower the weight to at most "
                    "the cap, or raise the cap"
                )
        if (total := sum(weights.values())) > 2 * cap + 1e-9:
            warnings.warn(
                f"the weights of the penalties sum to {total:.3g}, over twice the cap {cap}: once "
                "the cap is reached, further faults cost nothing. Lower the weights",
                stacklevel=3,
            )

    async def score(self, trace: Trace) -> Score:
        """Score one trace, as far as it can be without its group.

        Raises:
            RubricError: If a function raises, or does not return a number in its range. The
                message names it. Never turned into a 0.
        """
        outcome, *others = await values_of(self._parts, trace)
        rest = iter(others)
        score = Score(
            reward=None,
            outcome=outcome,
            penalties={name: next(rest) for name in self.penalties},
            gates={
                name: None if (value := next(rest)) is None else bool(value) for name in self.gates
            },
            metrics={name: next(rest) for name in self.metrics},
        )
        score.reward = self.combine(score)
        await self._place_costs(trace, score)
        return score

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Add the group rewards to the scores of one task's traces, in place.

        A trace without a reward (it failed, or was not scored) is not part of its group.

        Raises:
            RubricError: If a function raises, or does not return a number in [0, 1] per trace.
                The message names it.
        """
        scored = [trace for trace in traces if trace.reward is not None]
        await apply_group_rewards(self.group_rewards, scored, self.combine)
        for trace in scored:
            if trace.score is not None:
                await self._place_costs(trace, trace.score)

    def combine(self, score: Score) -> float | None:
        """Return the reward for the raw components; the formula is at the top of this file."""
        if False in score.gates.values():
            return 0.0
        if score.outcome is None:
            return None
        faults = [
            penalty.weight * (score.penalties.get(name) or 0.0)
            for name, penalty in self.penalties.items()
        ]
        faults += [
            reward.weight * (1.0 - value)
            for name, reward in self.group_rewards.items()
            if (value := score.parts.get(name)) is not None
        ]
        taken = min(self.cap, sum(faults))
        if score.outcome > 0.0:
            return self.floor + (1.0 - self.floor) * score.outcome * (1.0 - taken)
        return self.floor * (1.0 - taken / self.cap) if self.floor else 0.0

    async def _place_costs(self, trace: Trace, score: Score) -> None:
        """Record in a score what its penalties cost in which turn."""
        score.turn_costs = {}
        if not trace.turns:
            return
        for name, penalty in self.penalties.items():
            if penalty.turns is None or not score.penalties.get(name) or score.reward is None:
                continue
            without = replace(score, penalties={**score.penalties, name: 0.0})
            if not (cost := (self.combine(without) or 0.0) - score.reward):
                continue
            with blaming(f"penalty {name!r}: its turns"):
                weights = await call(penalty.turns, trace)
            if total := sum(_checked_turns(name, weights, len(trace.turns))):
                score.turn_costs[name] = [cost * weight / total for weight in weights]


def episode_return(trace: Trace) -> float:
    """The sum of the environment's step rewards.

    Range: must be [0, 1] to serve as an outcome; the environment's author ensures that.

    Formula: Σ rₜ over the turns t.

    Source: the undiscounted return of reinforcement learning.

    Known ways to game it: those of the environment's rewards. Small rewards for every step
        encourage many steps.
    """
    return sum(trace.step_rewards)


_PARAMETERS = ("outcome", "penalties", "gates", "metrics", "group_rewards", "cap", "floor")


def _advice(outcome: object, unknown: Mapping[str, object]) -> str:
    """Say what to write instead of a rubric without an outcome, such as one of verifiers."""
    functions = unknown.get("funcs", outcome)
    if isinstance(functions, list | tuple):
        names = ", ".join(map(name_of, functions))
        weights = f", weights={unknown['weights']}" if "weights" in unknown else ""
        return (
            "a Rubric has one outcome, and no list of functions; for their weighted sum, write "
            f"vf.WeightedSum([{names}]{weights})"
        )
    if unknown:
        name = next(iter(unknown))
        hint = did_you_mean(name, _PARAMETERS)
        return f"Rubric has no argument {name!r}.{hint} It takes: {', '.join(_PARAMETERS)}"
    return "a Rubric needs an outcome, a function of the trace: vf.Rubric(outcome=...)"


def group_rewards_by_name(
    entries: Iterable[GroupReward | GroupScorer] | Mapping[str, GroupReward | GroupScorer],
) -> dict[str, GroupReward]:
    """Return group rewards by name, plain functions with the default weight.

    Raises:
        ConfigError: If two share a name, or something is not a function of a group.
    """
    return {
        name: entry if isinstance(entry, GroupReward) else GroupReward(entry)
        for name, entry in by_name("group rewards", entries, _name).items()
    }


def _checked_turns(name: str, weights: Sequence[float], turns: int) -> Sequence[float]:
    if len(weights) != turns or not all(0.0 <= weight < math.inf for weight in weights):
        raise RubricError(
            f"penalty {name!r}: its turns must be a finite weight of at least 0 for each of the "
            f"{turns} turns, got {list(weights)!r}"
        )
    return weights


def _name(entry: Penalty | GroupReward | Scorer | GroupScorer) -> str:
    if isinstance(entry, (Penalty, GroupReward)):
        return entry.name or name_of(entry.fn)
    return name_of(entry)
