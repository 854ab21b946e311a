"""Which task comes next: shuffled epochs, in which tasks may rest or be left out."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.trainer.settings.config import TrainerArgs


class Draw(NamedTuple):
    """A task that was drawn.

    Attributes:
        task: The problem.
        number: Its unique place in the sequence of all draws; seeds derive from it.
        epoch: How many passes over all tasks came before.
    """

    task: Task
    number: int
    epoch: int


class TaskCursor:
    """Walks through the tasks, in an order that is shuffled for every epoch.

    Args:
        tasks: The train split.
        args: ``[trainer.args]``: the seed, and how long easy and hard tasks rest.
        overlong: Ids of tasks whose first prompts are known to be too long: they are left out.
    """

    def __init__(
        self, tasks: Sequence[Task], args: TrainerArgs, overlong: Collection[str] = ()
    ) -> None:
        self._tasks = tasks
        self._args = args
        self._by_id = {task.id: task for task in tasks}
        self._position = 0
        self._rests_through: dict[str, int] = {}  # the last epoch without it, by a task's id
        self._left_out = dict.fromkeys(overlong, args.max_prompt_len)  # by the limit they exceed
        self._shuffled: tuple[int, list[int]] = (-1, [])

    @property
    def first(self) -> Task:
        """The first task of the split that is not left out."""
        return next(task for task in self._tasks if task.id not in self._left_out)

    @property
    def resting(self) -> int:
        """How many tasks rest in the current epoch. For any thread."""
        epoch = self._position // len(self._tasks)
        return sum(through >= epoch for through in self._rests_through.copy().values())

    @property
    def overlong(self) -> int:
        """How many tasks are left out. For any thread."""
        return len(self._left_out)

    def leave_out(self, task_id: str) -> bool:
        """Never draw a task again, because its first prompt is over ``max_prompt_len``.

        Returns:
            Whether it was not left out already.
        """
        new = task_id not in self._left_out
        self._left_out[task_id] = self._args.max_prompt_len
        return new

    def draw(self) -> Draw:
        """Return the next task that neither rests nor is left out.

        Raises:
            ConfigError: All are left out.
        """
        if len(self._left_out) == len(self._tasks):
            raise ConfigError(
                f"the first prompts of all {len(self._tasks)} train tasks are longer than "
                f"trainer.args.max_prompt_len = {self._args.max_prompt_len}; raise it"
            )
        while True:
            number = self._position
            epoch, place = divmod(number, len(self._tasks))
            self._position += 1
            task = self._tasks[self._order(epoch)[place]]
            if self._may_come(task, epoch):
                return Draw(task, number, epoch)

    def next(self, count: int) -> list[Task]:
        """Return the tasks that are drawn next, as far as can be seen now; draws none."""
        coming: list[Task] = []
        for number in range(self._position, self._position + len(self._tasks)):
            if len(coming) == count:
                break
            epoch, place = divmod(number, len(self._tasks))
            task = self._tasks[self._order(epoch)[place]]
            if self._may_come(task, epoch):
                coming.append(task)
        return coming

    def task(self, task_id: str) -> Task | None:
        """Return a task of the split by its id."""
        return self._by_id.get(task_id)

    def observe(self, draw: Draw, outcomes: Sequence[float]) -> None:
        """Let a task rest if its group shows that it is easy, or hard.

        Args:
            draw: The task as it was drawn.
            outcomes: Those of the group's rollouts, each in [0, 1].
        """
        args, rest = self._args, 0
        if not outcomes:
            return
        if args.rest_easy and min(outcomes) >= args.easy_outcome:
            rest = args.rest_easy
        elif args.rest_hard and max(outcomes) <= args.hard_outcome:
            rest = args.rest_hard
        if rest:
            self._rests_through[draw.task.id] = draw.epoch + rest

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        return {
            "position": self._position,
            "rests_through": dict(self._rests_through),
            "left_out": dict(self._left_out),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume where a saved cursor was. A higher ``max_prompt_len`` lets tasks return."""
        self._position = int(state["position"])
        self._rests_through = dict(state["rests_through"])
        limit = self._args.max_prompt_len
        self._left_out |= {
            task: exceeded
            for task, exceeded in state.get("left_out", {}).items()
            if exceeded >= limit and task in self._by_id
        }

    def _may_come(self, task: Task, epoch: int) -> bool:
        return task.id not in self._left_out and self._rests_through.get(task.id, -1) < epoch

    def _order(self, epoch: int) -> list[int]:
        if self._shuffled[0] != epoch:
            order = list(range(len(self._tasks)))
            random.Random(derive_seed(self._args.seed, "epoch", epoch)).shuffle(order)
            self._shuffled = epoch, order
        return self._shuffled[1]
