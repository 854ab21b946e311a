"""The rubric: an outcome in [0, 1], reduced by bounded process penalties.

    reward = outcome × (1 − min(cap, Σ wᵢ·pᵢ))        outcome, pᵢ ∈ [0, 1], cap ≤ 0.5

A penalty takes away a share of what was earned. So the reward is bounded by the outcome, and no
penalty can make a failure beat a success.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from vf.traces.calling import call
from vf.traces.errors import ConfigError, RubricError
from vf.traces.trace import Score, Trace

Value = float | int | bool
Scorer = Callable[[Trace], Value | Awaitable[Value]]


@dataclass(frozen=True, slots=True)
class Penalty:
    """A process penalty: a function of the trace with values in [0, 1], and its weight.

    Attributes:
        fn: 0 is faultless, 1 is as bad as it gets.
        weight: Share of the outcome that a penalty of 1 costs, above 0 and at most 1.
        name: How it appears in scores; the function's name by default.
    """

    fn: Scorer
    weight: float = 0.1
    name: str = ""

    def __post_init__(self) -> None:
        if not 0.0 < self.weight <= 1.0:
            raise ConfigError(
                f"penalty {_name(self.fn)!r}: weight must be above 0 and at most 1, "
                f"got {self.weight}"
            )


class Rubric:
    """Scores traces.

    Args:
        outcome: How well the task was solved, in [0, 1]. Sync or async, takes the trace.
        penalties: :class:`Penalty` objects, or plain functions (weight 0.1).
        metrics: Measured and recorded; never part of the reward. Any finite number.
        cap: The largest share of the outcome that all penalties together can take, at most 0.5.

    Example::

        def correct(trace: vf.Trace) -> float:
            return float(trace.reply.strip() == trace.task.answer)

        rubric = vf.Rubric(outcome=correct, penalties=[vf.Penalty(extra_calls, weight=0.2)])

    Raises:
        ConfigError: The cap is out of range, two functions share a name, or something is not a
            function of one trace.
    """

    def __init__(
        self,
        outcome: Scorer,
        penalties: Sequence[Penalty | Scorer] = (),
        metrics: Sequence[Scorer] | Mapping[str, Scorer] = (),
        cap: float = 0.5,
    ) -> None:
        if not 0.0 <= cap <= 0.5:
            raise ConfigError(f"cap must be in [0, 0.5], got {cap}")
        self.cap = cap
        self.outcome = _checked(outcome)
        self.penalties: dict[str, Penalty] = {}
        for entry in penalties:
            penalty = entry if isinstance(entry, Penalty) else Penalty(entry)
            name = penalty.name or _name(penalty.fn)
            _checked(penalty.fn)
            if name in self.penalties:
                raise ConfigError(f"two penalties are called {name!r}; give one a `name`")
            self.penalties[name] = penalty
        if not isinstance(metrics, Mapping):
            named = {_name(fn): fn for fn in metrics}
            if len(named) != len(metrics):
                raise ConfigError("two metrics share a name; pass a dict of name to function")
            metrics = named
        self.metrics = {name: _checked(fn) for name, fn in metrics.items()}

    async def score(self, trace: Trace) -> Score:
        """Score one trace.

        Raises:
            RubricError: A function raised, or returned something that is not a number in its
                range. The message names it. Never turned into a 0.
        """
        parts = [
            (self.outcome, _name(self.outcome), True),
            *((penalty.fn, name, True) for name, penalty in self.penalties.items()),
            *((fn, name, False) for name, fn in self.metrics.items()),
        ]
        # Plain functions share one thread, so a slow or hanging one holds up no other rollout.
        raw = await call(_run_all, parts, trace)
        values = [
            await _value(result, name, unit=unit)
            for result, (_, name, unit) in zip(raw, parts, strict=True)
        ]
        outcome, rest = values[0], iter(values[1:])
        penalties = {name: next(rest) for name in self.penalties}
        metrics = {name: next(rest) for name in self.metrics}
        total = sum(self.penalties[name].weight * value for name, value in penalties.items())
        return Score(outcome * (1.0 - min(self.cap, total)), outcome, penalties, metrics)


def episode_return(trace: Trace) -> float:
    """The sum of the environment's step rewards.

    Range: must be [0, 1] to serve as an outcome; the environment's author sees to it.
    """
    return sum(trace.step_rewards)


def _run_all(
    parts: Sequence[tuple[Scorer, str, bool]], trace: Trace
) -> list[Value | Awaitable[Value]]:
    return [_run(fn, name, trace) for fn, name, _ in parts]


def _run(fn: Scorer, name: str, trace: Trace) -> Value | Awaitable[Value]:
    try:
        return fn(trace)
    except (Exception, SystemExit) as error:
        raise RubricError(f"{name!r} raised {type(error).__name__}: {error}") from error


async def _value(result: Value | Awaitable[Value], name: str, *, unit: bool) -> float:
    """Await a scorer's result if need be, and check that it is a number in its range."""
    try:
        value = await result if inspect.isawaitable(result) else result
    except Exception as error:
        raise RubricError(f"{name!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(value, Real):  # bool, and NumPy's scalars, are among them
        raise RubricError(f"{name!r} returned {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise RubricError(f"{name!r} returned {number}")
    if unit and not 0.0 <= number <= 1.0:
        raise RubricError(f"{name!r} returned {number}, which is outside [0, 1]")
    return number


def _name(fn: Scorer) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _checked(fn: Scorer) -> Scorer:
    if not callable(fn):
        raise ConfigError(f"{fn!r} is not a function of a trace")
    try:
        inspect.signature(fn).bind(object())
    except TypeError:
        raise ConfigError(f"{_name(fn)!r} must take one argument, the trace") from None
    except ValueError:  # a builtin without a signature
        pass
    return fn
