"""Which environment, and which of its tasks, each group of a run is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vf.trainer.collecting.shares import RolloutShares, TokenShares, interleave
from vf.trainer.collecting.task_cursor import Draw, TaskCursor
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics, by_environment
from vf.trainer.run.run_environment import RunEnvironment


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
        by_tokens = [each.token_ratio for each in settings if each.token_ratio is not None]
        self._shares: RolloutShares | TokenShares = (
            TokenShares(by_tokens)
            if several and by_tokens
            else RolloutShares([each.ratio or 1.0 for each in settings])
        )

    def draws(self, count: int) -> list[Draw]:
        """Return the tasks of a step's groups, those of each environment spread over the step.

        Raises:
            ConfigError: An environment has no task left.
            TrainingError: A curriculum is at fault.
        """
        places = interleave(self._shares.counts(count))
        return [self._draw(self._names[place]) for place in places]

    def draw(self, environment: str, *, instead: bool = False) -> Draw:
        """Return the task of one more group of an environment.

        Args:
            environment: Its name.
            instead: Whether it takes the place of a group that came to nothing.

        Raises:
            ConfigError: No task is left.
            TrainingError: The curriculum is at fault.
        """
        if not instead:
            self._shares.drew(self._names.index(environment))
        return self._draw(environment)

    def _draw(self, environment: str) -> Draw:
        """Draw a task, and number it among the draws of all environments."""
        cursor = self.cursors[environment]
        found = cursor.draw()
        # The sum rises with every draw, unless an environment was removed before a resume.
        position = sum(each.position for each in self.cursors.values()) - 1
        self._last = max(self._last + 1, position)
        return found._replace(number=self._last)

    def observe(self, groups: Sequence[Group]) -> list[str]:
        """Take note of all groups of a step, and return what the user should know.

        Raises:
            TrainingError: A curriculum is at fault.
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
        found: dict[str, Metrics] = {
            name: {"tasks/resting": cursor.resting, "tasks/overlong": cursor.overlong}
            for name, cursor in self.cursors.items()
        }
        return by_environment(found) | {
            key: sum(each[key] for each in found.values())
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
