"""Rewards of verifiers, which may be any number, rescaled to [0, 1].

    reward = (theirs − lo) / (hi − lo)

With (lo, hi) = (0, 1), the default for weights that allow no other, it is theirs, which
is always recorded as the metric ``verifiers_reward``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vf.rubrics.scorers import Part, Range, checked
from vf.runtime.errors import ConfigError, RubricError
from vf.traces.trace import Score

THEIRS = "verifiers_reward"
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RewardRange:
    """The range of verifiers' reward in an environment.

    Attributes:
        name: The environment, for the errors.
        low: The reward that is worth 0.
        high: The reward that is worth 1.
    """

    name: str
    low: float = 0.0
    high: float = 1.0

    def share(self, reward: float) -> float:
        """Return a reward of theirs as ours.

        Raises:
            RubricError: If it is outside of the range; says what to give instead.
        """
        margin = _ROUNDING * (self.high - self.low)
        if not self.low - margin <= reward <= self.high + margin:
            raise RubricError(
                f"{self.name}: verifiers' reward is {reward:g}, outside of "
                f"[{self.low:g}, {self.high:g}]. Give what it can be, as in reward_range = "
                f"[{min(self.low, reward):g}, {max(self.high, reward):g}]: it is mapped to [0, 1]"
            )
        return min(1.0, max(0.0, (reward - self.low) / (self.high - self.low)))

    def score(
        self, reward: Any, parts: Mapping[str, Any], metrics: Mapping[str, Any] | None = None
    ) -> Score:
        """Return our score for one of theirs.

        Args:
            reward: Their reward.
            parts: The values of the functions with a weight, by name.
            metrics: The values of those without one.

        Raises:
            RubricError: If a value is not a finite number, or the reward is outside of the range.
        """
        # Before the reward, so that an error names the function and not the sum.
        weighted: dict[str, float | None] = {
            name: _number(name, value) for name, value in parts.items()
        }
        rest: dict[str, float | None] = {
            name: _number(name, value) for name, value in (metrics or {}).items()
        }
        rest[THEIRS] = theirs = _number(THEIRS, reward)
        share = self.share(theirs)
        return Score(reward=share, outcome=share, parts=weighted, metrics=rest)


def reward_range(
    name: str, given: Sequence[float] | None, weights: Iterable[Sequence[float]]
) -> RewardRange:
    """Return the range of an environment's rewards.

    Without a given one it is what the weights allow where every function is in [0, 1], and at
    least [0, 1]; where that is more than [0, 1], a warning says so.

    Args:
        name: The environment, for messages.
        given: ``(lo, hi)``, or None.
        weights: The weights of each rubric that a task may be scored by.

    Raises:
        ConfigError: If the given range is not ``lo < hi``, both finite.
    """
    if given is not None:
        numbers = [float(bound) for bound in given]
        if len(numbers) != 2 or not -math.inf < numbers[0] < numbers[1] < math.inf:
            raise ConfigError(f"{name}: reward_range must be [lo, hi], lo < hi, got {given!r}")
        return RewardRange(name, *numbers)
    low = min([0.0, *(sum(w for w in rubric if w < 0) for rubric in weights)])
    high = max([1.0, *(sum(w for w in rubric if w > 0) for rubric in weights)])
    if high > 1.0 + _ROUNDING or low < 0.0:
        warnings.warn(
            f"{name}: its weights allow rewards from {low:g} to {high:g}, and these are mapped to "
            "[0, 1]. verifiers' own reward is the metric verifiers_reward; reward_range = "
            "[lo, hi] sets the range",
            stacklevel=2,
        )
    return RewardRange(name, low, high)


def _number(name: str, value: Any) -> float:
    number = checked(value, Part(name, lambda trace: None, Range.FINITE))
    if number is None:
        raise RubricError(f"{name!r} returned None, not a number")
    return number
