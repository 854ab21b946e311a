"""Which environment, and which of its tasks, each group of a run is of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vf.trainer.collecting.task_cursor import Draw, TaskCursor
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics, by_environment
from vf.trainer.run.run_environment import RunEnvironment


def apportion(quotas: Sequence[float], total: int) -> list[int]:
    """Return whole numbers that sum to a total, by the method of the largest remainder.

    Each is its quota rounded down, and those with the largest remainders get one more. A quota
    below 0, which is a debt of earlier steps, gets none.

    Args:
        quotas: Fractional shares that sum to ``total``.
        total: The number to share out.
    """
    counts = [max(0, math.floor(quota + 1e-9)) for quota in quotas]
    left = [quota - count for quota, count in zip(quotas, counts, strict=True)]
    while (missing := total - sum(counts)) != 0:
        candidates = [index for index, count in enumerate(counts) if missing > 0 or count]
        change = 1 if missing > 0 else -1
        # Of equal ones the first; differences of rounding are none.
        index = max(candidates, key=lambda index: (round(change * left[index], 9), -index))
        counts[index] += change
        left[index] -= change
    return counts


def interleave(counts: Sequence[int]) -> list[int]:
    """Return each index as often as its count says, those of each spread evenly."""
    turns = [
        ((turn + 0.5) / count, index) for index, count in enumerate(counts) for turn in range(count)
    ]
    return [index for _, index in sorted(turns)]


class RolloutShares:
    """Shares of rollouts: exact over time, and in every step as near as whole groups allow.

    What a step's whole groups leave over is carried to the next.

    Args:
        weights: Each above 0; only their proportions count.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._parts = [weight / math.fsum(weights) for weight in weights]
        self._owed = [0.0] * len(weights)  # groups, of earlier steps

    def counts(self, total: int) -> list[int]:
        """Return how many of a step's groups each gets."""
        quotas = [owed + part * total for owed, part in zip(self._owed, self._parts, strict=True)]
        counts = apportion(quotas, total)
        self._owed = [quota - count for quota, count in zip(quotas, counts, strict=True)]
        return counts

    def drew(self, index: int) -> None:
        """A further group was begun: it takes nothing from the shares."""

    def observe(self, index: int, tokens: int) -> None:
        """A group has ended: its tokens change nothing."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        return {"owed": self._owed}

    def load(self, state: dict[str, Any]) -> None:
        """Resume, if as many environments were saved."""
        if len(owed := state.get("owed", [])) == len(self._owed):
            self._owed = list(owed)


class TokenShares:
    """Shares of the tokens that carry loss, over time.

    A group of a step goes to the environment that would then have the least of its share. A group
    that is under way counts as much as its environment's groups had on average.

    Args:
        weights: Each above 0; only their proportions count.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._parts = [weight / math.fsum(weights) for weight in weights]
        self._tokens = [0] * len(weights)  # of finished groups
        self._ended = [0] * len(weights)
        self._begun = [0] * len(weights)

    def counts(self, total: int) -> list[int]:
        """Return how many of a step's groups each gets."""
        means = [t / n for t, n in zip(self._tokens, self._ended, strict=True) if n]
        usual = math.fsum(means) / len(means) if means else 1.0
        sizes = [
            max(1.0, tokens / ended) if ended else usual
            for tokens, ended in zip(self._tokens, self._ended, strict=True)
        ]
        counts = [0] * len(sizes)
        for _ in range(total):
            after = [
                (self._tokens[i] + sizes[i] * (self._begun[i] - self._ended[i] + 1)) / part
                for i, part in enumerate(self._parts)
            ]
            index = after.index(min(after))
            counts[index] += 1
            self._begun[index] += 1
        return counts

    def drew(self, index: int) -> None:
        """A further group was begun, beside those of :meth:`counts`."""
        self._begun[index] += 1

    def observe(self, index: int, tokens: int) -> None:
        """A group has ended."""
        self._tokens[index] += tokens
        self._ended[index] += 1

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        return {"tokens": self._tokens, "ended": self._ended, "begun": self._begun}

    def load(self, state: dict[str, Any]) -> None:
        """Resume, if as many environments were saved."""
        if len(state.get("tokens", [])) == len(self._tokens):
            self._tokens = list(state["tokens"])
            self._ended, self._begun = list(state["ended"]), list(state["begun"])


class Mixture:
    """The environments of a run: one, or several with shares.

    Args:
        members: The environments.

    Attributes:
        members: By their names.
        cursors: By the same.
    """

    def __init__(self, members: Sequence[RunEnvironment]) -> None:
        several = len(members) > 1
        self.members = {member.name: member for member in members}
        self.cursors = {member.name: TaskCursor(member) for member in members}
        self._names = list(self.members)
        self._last = -1  # the number of the last draw
        settings = [member.settings for member in members]
        by_tokens = [env.token_ratio for env in settings if env.token_ratio is not None]
        self._shares: RolloutShares | TokenShares = (
            TokenShares(by_tokens)
            if several and by_tokens
            else RolloutShares([env.ratio or 1.0 for env in settings])
        )

    def draws(self, count: int) -> list[Draw]:
        """Return the tasks of a step's groups, those of each environment spread over the step.

        Raises:
            ConfigError: If an environment has no task left.
            TrainingError: If a curriculum is at fault.
        """
        indices = interleave(self._shares.counts(count))
        return [self._draw(self._names[index]) for index in indices]

    def draw(self, environment: str, *, instead: bool = False) -> Draw:
        """Return the task of one more group of an environment.

        Args:
            environment: The environment's name.
            instead: Whether it takes the place of a group that came to nothing.

        Raises:
            ConfigError: If no task is left.
            TrainingError: If the curriculum is at fault.
        """
        if not instead:
            self._shares.drew(self._names.index(environment))
        return self._draw(environment)

    def _draw(self, environment: str) -> Draw:
        """Draw a task, and number it among the draws of all environments."""
        cursor = self.cursors[environment]
        drawn = cursor.draw()
        # The sum rises with every draw, unless an environment was removed before a resume.
        position = sum(cursor.position for cursor in self.cursors.values()) - 1
        self._last = max(self._last + 1, position)
        return drawn._replace(number=self._last)

    def observe(self, groups: Sequence[Group]) -> list[str]:
        """Take note of all groups of a step, and return what the user should know.

        Raises:
            TrainingError: If a curriculum is at fault.
        """
        notes = []
        for group in sorted(groups, key=lambda group: group.number):
            name = group.environment
            draw = Draw(group.task, group.number, group.epoch, name)
            if note := self.cursors[name].observe(draw, group.outcomes):
                notes.append(f"{name}: {note}" if len(self._names) > 1 else note)
            self._shares.observe(self._names.index(name), group.loss_tokens)
        return notes

    def metrics(self) -> Metrics:
        """Return how many tasks rest or are left out, in all and by environment. For any thread."""
        by_name: dict[str, Metrics] = {
            name: {"tasks/resting": cursor.resting, "tasks/overlong": cursor.overlong}
            for name, cursor in self.cursors.items()
        }
        return by_environment(by_name) | {
            key: sum(metrics[key] for metrics in by_name.values())
            for key in ("tasks/resting", "tasks/overlong")
        }

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        return {
            "environments": {name: cursor.state() for name, cursor in self.cursors.items()},
            "shares": self._shares.state(),
            "last": self._last,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume where a saved mixture was; an environment that it did not have begins."""
        if "position" in state:  # as it was written when a run had one environment
            state = {"environments": {self._names[0]: state}}
        for name, saved in state.get("environments", {}).items():
            if name in self.cursors:
                self.cursors[name].load(saved)
        self._shares.load(state.get("shares", {}))
        self._last = state.get("last", -1)
