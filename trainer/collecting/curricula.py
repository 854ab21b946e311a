"""The curricula that come with the library; see :class:`~vf.trainer.collecting.curriculum`."""

from __future__ import annotations

import random
from bisect import bisect
from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task


def _check(name: str, value: Any, low: float, high: float, *, closed: bool = True) -> None:
    """Raise ConfigError unless a value is a number from ``low`` to ``high``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and low <= value <= high and (closed or value > low)):
        begin = "from" if closed else "above"
        raise ConfigError(f"{name} = {value!r}: must be a number {begin} {low:g} to {high:g}")


class _Rates:
    """Success rates by name, estimated from outcomes of which the older count less.

    With s the sum of a name's outcomes and n their number, p = (s + 1) / (n + 2), by Laplace's rule
    of succession: 1/2 for one that has none. What was before a group of outcomes counts ``memory``
    of what it did.
    """

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._seen: dict[str, tuple[float, float]] = {}  # s and n

    def observe(self, name: str, outcomes: Sequence[float]) -> None:
        total, count = self._seen.get(name, (0.0, 0.0))
        keep = self._memory
        self._seen[name] = keep * total + sum(outcomes), keep * count + len(outcomes)

    def rate(self, name: str) -> float:
        total, count = self._seen.get(name, (0.0, 0.0))
        return (total + 1.0) / (count + 2.0)

    def state(self) -> dict[str, Any]:
        return {"seen": {name: list(both) for name, both in self._seen.items()}}

    def load(self, state: dict[str, Any], names: Container[str]) -> list[str]:
        """Restore the names that still exist; return them."""
        seen = {name: both for name, both in state.get("seen", {}).items() if name in names}
        self._seen |= {name: (total, count) for name, (total, count) in seen.items()}
        return [*seen]


class Uniform:
    """Every task once in an epoch, in an order that is shuffled for each.

    Args:
        tasks: The tasks.
        seed: The seed of the order.
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = tasks
        self._seed = seed
        self._shuffled: tuple[int, list[int]] = (-1, [])

    def choose(self, number: int) -> Task:
        """Return the task of a draw."""
        epoch, index = divmod(number, len(self._tasks))
        if self._shuffled[0] != epoch:
            order = list(range(len(self._tasks)))
            random.Random(derive_seed(self._seed, "epoch", epoch)).shuffle(order)
            self._shuffled = epoch, order
        return self._tasks[self._shuffled[1][index]]

    def observe(self, task: Task, outcomes: Sequence[float]) -> None:
        """Outcomes change nothing."""

    def state(self) -> dict[str, Any]:
        """Nothing needs to be saved: an order follows from the seed."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing was saved."""


class SuccessRate:
    """Tasks that succeed about half the time come most often: there a group teaches most.

    A task is drawn, with replacement, in proportion to w = floor + (1 − floor) · 4 p (1 − p). There
    p = (s + 1) / (n + 2) is the estimate of its success rate (Laplace's rule of succession): 1/2
    for a task that has not been tried. s is the sum of its outcomes, and n their number, of which
    those before the last group count ``memory`` of what they did before each further group.
    p (1 − p) is the variance of an outcome of 0 or 1, which is the mean square of the advantages.

    Args:
        tasks: The tasks.
        seed: The seed of the draws.
        floor: Weight of a task that always or never succeeds, in (0, 1].
        memory: The weight that earlier outcomes keep after a further group, in [0, 1].

    Raises:
        ConfigError: If an argument is out of range.
    """

    def __init__(
        self, tasks: Sequence[Task], seed: int, floor: float = 0.05, memory: float = 0.5
    ) -> None:
        _check("floor", floor, 0.0, 1.0, closed=False)
        _check("memory", memory, 0.0, 1.0)
        self._tasks = tasks
        self._seed = seed
        self._floor = floor
        self._rates = _Rates(memory)  # by the task's id
        self._indices = {task.id: index for index, task in enumerate(tasks)}
        self._weights = [1.0] * len(tasks)
        self._sums: list[float] = []

    def choose(self, number: int) -> Task:
        """Return the task of a draw."""
        if not self._sums:
            self._sums = list(accumulate(self._weights))
        chance = random.Random(derive_seed(self._seed, "draw", number)).random() * self._sums[-1]
        return self._tasks[min(bisect(self._sums, chance), len(self._tasks) - 1)]

    def observe(self, task: Task, outcomes: Sequence[float]) -> None:
        """Count a group's outcomes."""
        self._rates.observe(task.id, outcomes)
        self._weigh(task.id)

    def state(self) -> dict[str, Any]:
        """Return the outcomes of each task, summed."""
        return self._rates.state()

    def load(self, state: dict[str, Any]) -> None:
        """Resume; tasks that are no longer there are forgotten."""
        for task in self._rates.load(state, self._indices):
            self._weigh(task)

    def _weigh(self, task: str) -> None:
        rate = self._rates.rate(task)
        weight = self._floor + (1.0 - self._floor) * 4.0 * rate * (1.0 - rate)
        self._weights[self._indices[task]] = weight
        self._sums = []


class Stages:
    """One stage of tasks after the other, each until its outcomes are good enough.

    Within a stage tasks come as with :class:`Uniform`. The last stage does not end.

    Args:
        tasks: The tasks.
        seed: The seed of the order.
        by: Key of ``Task.info`` that says which stage a task is of.
        stages: The values, in the order of the stages; by default all there are, sorted.
        threshold: The mean outcome that ends a stage, in (0, 1]; or one for each but the last.
        window: Groups, the last of the stage, that the mean is over; a stage has at least as many.

    Raises:
        ConfigError: If a task has no such key, a stage has no task, or a number is out of range.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        by: str,
        stages: Sequence[Any] | None = None,
        threshold: float | Sequence[float] = 0.8,
        window: int = 16,
    ) -> None:
        groups = _by_key(tasks, by)
        self._names = sorted(groups) if stages is None else list(stages)
        if missing := [name for name in self._names if name not in groups]:
            raise ConfigError(
                f"stages: no task has info[{by!r}] = {missing[0]!r}; known: "
                f"{', '.join(map(repr, groups))}"
            )
        if not self._names:
            raise ConfigError("stages: must name at least one")
        ends = len(self._names) - 1
        listed: Sequence[Any] = [threshold] * max(1, ends)
        if isinstance(threshold, list | tuple):
            listed = threshold
        for value in listed:
            _check("threshold", value, 0.0, 1.0, closed=False)
        if isinstance(threshold, list | tuple) and len(threshold) != ends:
            raise ConfigError(
                f"threshold: there are {len(threshold)} for {ends + 1} stages; give one, or "
                f"{ends}, for the last stage does not end"
            )
        self._thresholds: Sequence[float] = listed
        if type(window) is not int or window < 1:
            raise ConfigError(f"window = {window!r}: must be a number of groups, at least 1")
        self._orders = [Uniform(groups[name], seed) for name in self._names]
        self._by = by
        self._stage = 0
        self._last: deque[float] = deque(maxlen=window)

    def choose(self, number: int) -> Task:
        """Return the task of a draw."""
        return self._orders[self._stage].choose(number)

    def observe(self, task: Task, outcomes: Sequence[float]) -> str | None:
        """Begin the next stage, if a group shows that this one is learned."""
        if self._stage == len(self._names) - 1 or task.info[self._by] != self._names[self._stage]:
            return None
        self._last.append(fmean(outcomes))
        mean, enough = fmean(self._last), len(self._last) == self._last.maxlen
        if not enough or mean < self._thresholds[self._stage]:
            return None
        self._stage += 1
        self._last.clear()
        return (
            f"stage {self._stage + 1} of {len(self._names)} begins, {self._by} = "
            f"{self._names[self._stage]!r}: the mean outcome of the last {self._last.maxlen} "
            f"groups was {mean:.3f}"
        )

    def state(self) -> dict[str, Any]:
        """Return the stage, and the outcomes of its last groups."""
        return {"stage": self._stage, "last": list(self._last)}

    def load(self, state: dict[str, Any]) -> None:
        """Resume in a stage; in the last one, if there are fewer now."""
        self._stage = min(int(state.get("stage", 0)), len(self._names) - 1)
        self._last.extend(state.get("last", []))


class League:
    """Opponents that the policy does badly against come most often.

    An opponent is drawn in proportion to its weight w, and then any of its tasks; with replacement.
    p is the estimate of the mean outcome against it, as :class:`SuccessRate` makes one for a task:
    1/2 for one that has not been met. With ``hard``, w = floor + (1 - floor) * (1 - p)^2; with
    ``even``, w = floor + (1 - floor) * 4 p (1 - p); with ``uniform``, all are drawn equally often.
    This is prioritised fictitious self-play (Vinyals et al. 2019, AlphaStar,
    doi:10.1038/s41586-019-1724-z, Methods), whose weights have no floor.

    Args:
        tasks: The tasks.
        seed: The seed of the draws.
        by: Key of ``Task.info`` that says who the opponent is.
        weighting: ``hard``, ``even`` or ``uniform``.
        floor: Weight of an opponent that nothing more can be learned from, in (0, 1].
        memory: The weight that earlier outcomes against an opponent keep after a further group.

    Raises:
        ConfigError: If a task has no such key, or an argument is out of range.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        by: str = "opponent",
        weighting: str = "hard",
        floor: float = 0.05,
        memory: float = 0.9,
    ) -> None:
        if weighting not in _WEIGHTINGS:
            raise ConfigError(
                f"weighting = {weighting!r}: choose hard, even or uniform."
                f"{did_you_mean(str(weighting), _WEIGHTINGS)}"
            )
        _check("floor", floor, 0.0, 1.0, closed=False)
        _check("memory", memory, 0.0, 1.0)
        self._groups = {str(opponent): group for opponent, group in _by_key(tasks, by).items()}
        self._by, self._seed, self._floor = by, seed, floor
        self._weighting = _WEIGHTINGS[weighting]
        self._rates = _Rates(memory)  # by the opponent

    def choose(self, number: int) -> Task:
        """Return the task of a draw."""
        rng = random.Random(derive_seed(self._seed, "league", number))
        [opponent] = rng.choices([*self._groups], [self._weight(group) for group in self._groups])
        return rng.choice(self._groups[opponent])

    def observe(self, task: Task, outcomes: Sequence[float]) -> None:
        """Count a group's outcomes against its opponent."""
        self._rates.observe(str(task.info[self._by]), outcomes)

    def state(self) -> dict[str, Any]:
        """Return the outcomes against each opponent, summed."""
        return self._rates.state()

    def load(self, state: dict[str, Any]) -> None:
        """Resume; opponents that are no longer there are forgotten."""
        self._rates.load(state, self._groups)

    def _weight(self, opponent: str) -> float:
        weight = self._weighting(self._rates.rate(opponent))
        return self._floor + (1.0 - self._floor) * weight


_WEIGHTINGS: dict[str, Callable[[float], float]] = {
    "hard": lambda p: (1.0 - p) ** 2,
    "even": lambda p: 4.0 * p * (1.0 - p),
    "uniform": lambda p: 1.0,
}


def _by_key(tasks: Sequence[Task], by: str) -> dict[Any, list[Task]]:
    """Return tasks by what their info has under a key.

    Raises:
        ConfigError: If a task has no such key; says which there are.
    """
    groups: dict[Any, list[Task]] = {}
    for task in tasks:
        if not isinstance(by, str) or by not in task.info:
            keys = ", ".join(task.info) or "nothing"
            raise ConfigError(
                f"by = {by!r}: task {task.id!r} has no such key in its info."
                f"{did_you_mean(str(by), task.info)} It has: {keys}"
            )
        groups.setdefault(task.info[by], []).append(task)
    return groups
