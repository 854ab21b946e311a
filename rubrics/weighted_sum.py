"""A weighted sum of functions, as in verifiers.

    reward = (Σ wᵢ·fᵢ − lo) / (hi − lo)      fᵢ ∈ [0, 1],  hi = Σ positive wᵢ,  lo = Σ negative wᵢ

That is the usual ``Σ wᵢ·fᵢ``, mapped to [0, 1] by a scale and a shift that are the same for all
traces: rewards keep their order, and advantages only change by the factor 1 / (hi − lo). With
positive weights it is the weighted mean.

With this sum, a well-behaved failure can beat a success. Use :class:`~vf.rubrics.rubric.Rubric` if
there is an outcome.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from vf.rubrics.group import GroupReward, GroupScorer, apply_group_rewards
from vf.rubrics.rubric import group_rewards_by_name
from vf.rubrics.scorers import Part, Range, Scorer, by_name, check_scorer, values_of
from vf.runtime.errors import ConfigError
from vf.traces.trace import Score, Trace


class WeightedSum:
    """Scores traces by a weighted sum. Has the interface of :class:`~vf.rubrics.rubric.Rubric`.

    A function that returns None is left out for that trace, with its weight; if all do, the trace
    is not scored. Raw values are recorded in ``Score.parts``, and the reward also as the outcome.

    Args:
        functions: Functions of the trace, sync or async, with values in [0, 1]; or a dict of
            name to function.
        weights: One per function, in order; 1 each by default. Negative ones punish. One of 0
            makes a metric, with any finite value.
        group_rewards: :class:`~vf.rubrics.group.GroupReward` objects (their weight counts as
            one of the sum's) or plain functions (weight 0.1), of the traces of one task.

    Example::

        rubric = vf.WeightedSum([correct, well_formed, length], weights=[1.0, 0.2, 0.0])

    Raises:
        ConfigError: If the numbers of functions and weights differ, a weight is not finite, all
            are 0, two functions share a name, or something is not a function of one trace.
    """

    def __init__(
        self,
        functions: Iterable[Scorer] | Mapping[str, Scorer],
        weights: Sequence[float] | None = None,
        *,
        group_rewards: Iterable[GroupReward | GroupScorer]
        | Mapping[str, GroupReward | GroupScorer] = (),
    ) -> None:
        scorers: dict[str, Scorer] = by_name("functions", functions)
        weights = [1.0] * len(scorers) if weights is None else list(weights)
        if len(weights) != len(scorers):
            raise ConfigError(f"WeightedSum: {len(scorers)} functions, but {len(weights)} weights")
        self.group_rewards = group_rewards_by_name(group_rewards)
        self.weights = dict(zip(scorers, weights, strict=True))
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise ConfigError(f"WeightedSum: the weight of {name!r} is {weight}")
        if clash := self.weights.keys() & self.group_rewards.keys():
            raise ConfigError(f"WeightedSum: two functions are called {sorted(clash)[0]!r}")
        if not any(self.weights.values()) and not self.group_rewards:
            raise ConfigError("WeightedSum: every weight is 0, so there is no reward")
        self.metrics = {name: fn for name, fn in scorers.items() if not self.weights[name]}
        self._parts = [
            Part(name, scorers[name], worst=float(weight < 0))
            if weight
            else Part(name, scorers[name], Range.FINITE, None)
            for name, weight in self.weights.items()
        ]
        for part in self._parts:
            check_scorer(part.fn)

    async def score(self, trace: Trace) -> Score:
        """Score one trace, as far as it can be without its group.

        Raises:
            RubricError: If a function raises, or does not return a number in its range. The
                message names it. Never turned into a 0.
        """
        values = await values_of(self._parts, trace)
        named = {part.name: value for part, value in zip(self._parts, values, strict=True)}
        score = Score(
            reward=None,
            outcome=None,
            parts={name: value for name, value in named.items() if name not in self.metrics},
            metrics={name: named[name] for name in self.metrics},
        )
        score.reward = score.outcome = self.combine(score)
        return score

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Add the group rewards to the scores of one task's traces, in place.

        A trace without a score (it failed) is not part of its group.

        Raises:
            RubricError: If a function raises, or does not return a number in [0, 1] per trace.
                The message names it.
        """
        scored = [trace for trace in traces if trace.score is not None]
        await apply_group_rewards(self.group_rewards, scored, self._combined)

    def combine(self, score: Score) -> float | None:
        """Return the reward for the raw values; the formula is at the top of this file."""
        weights = self.weights | {name: entry.weight for name, entry in self.group_rewards.items()}
        weighted = [
            (weights[name], value) for name, value in score.parts.items() if value is not None
        ]
        low = sum(weight for weight, _ in weighted if weight < 0.0)
        high = sum(weight for weight, _ in weighted if weight > 0.0)
        if high == low:
            return None
        total = sum(weight * value for weight, value in weighted)
        return min(1.0, max(0.0, (total - low) / (high - low)))  # except for rounding

    def _combined(self, score: Score) -> float | None:
        score.outcome = self.combine(score)
        return score.outcome
