"""Which task of an environment comes next: what its curriculum chooses, and may come now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vf.runtime.errors import ConfigError, TrainingError, VfError
from vf.traces.task import Task
from vf.trainer.collecting.curriculum import make_curriculum
from vf.trainer.run.run_environment import RunEnvironment

MOST_REFUSED = 1000  # draws in a row of tasks that are left out, beside those of a whole epoch


class Draw(NamedTuple):
    """A task that was drawn.

    Attributes:
        task: The problem.
        number: The draw's unique place in the sequence of all draws; seeds derive from it.
        epoch: How many passes over all tasks of its environment came before.
        environment: The name of its environment.
    """

    task: Task
    number: int
    epoch: int
    environment: str


class TaskCursor:
    """Asks an environment's curriculum for tasks, and lets some rest or leaves them out.

    Args:
        member: The environment, its tasks, and how long easy and hard ones rest.
    """

    def __init__(self, member: RunEnvironment) -> None:
        self.member = member
        self._tasks = member.tasks
        self._args = member.args
        self._by_id = {task.id: task for task in member.tasks}
        self.position = 0  # draws so far, with those of tasks that could not come
        self._rests_through: dict[str, int] = {}  # the last epoch without it, by a task's id
        # By the limit they exceed.
        self._left_out = dict.fromkeys(member.overlong, member.args.max_prompt_len)
        settings = member.settings
        self._named = f"{member.table}.curriculum = {settings.curriculum!r}"
        self._curriculum = make_curriculum(
            settings.curriculum,
            settings.curriculum_args,
            member.tasks,
            member.args.seed,
            member.table,
        )

    @property
    def first(self) -> Task:
        """The first task of the split that is not left out."""
        return next(task for task in self._tasks if task.id not in self._left_out)

    @property
    def resting(self) -> int:
        """How many tasks rest in the current epoch. For any thread."""
        epoch = self.position // len(self._tasks)
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
            ConfigError: If all are left out, or all that the curriculum chooses.
            TrainingError: If the curriculum is at fault.
        """
        if len(self._left_out) == len(self._tasks):
            raise ConfigError(
                f"the first prompts of all {len(self._tasks)} train tasks of environment "
                f"{self.member.name!r} are longer than trainer.args.max_prompt_len = "
                f"{self._args.max_prompt_len}; raise it"
            )
        for candidate in self._coming(self.position):
            self.position = candidate.number + 1
            return candidate
        raise ConfigError(
            f"{self._named}: it chooses only tasks whose first prompts are longer than "
            f"max_prompt_len = {self._args.max_prompt_len}; raise it"
        )

    def next(self, count: int) -> list[Task]:
        """Return the tasks that are drawn next, as far as can be seen now; draws none."""
        coming: list[Task] = []
        for candidate in self._coming(self.position):
            if len(coming) == count or candidate.number >= self.position + len(self._tasks):
                break
            coming.append(candidate.task)
        return coming

    def task(self, task_id: str) -> Task | None:
        """Return a task of the split by its id."""
        return self._by_id.get(task_id)

    def observe(self, draw: Draw, outcomes: Sequence[float]) -> str | None:
        """Tell the curriculum of a group; let its task rest if it shows to be easy, or hard.

        Args:
            draw: The task as it was drawn.
            outcomes: Those of the group's rollouts, each in [0, 1].

        Returns:
            What the user should know.

        Raises:
            TrainingError: If the curriculum is at fault.
        """
        args, rest = self._args, 0
        if not outcomes:
            return None
        if args.rest_easy and min(outcomes) >= args.easy_outcome:
            rest = args.rest_easy
        elif args.rest_hard and max(outcomes) <= args.hard_outcome:
            rest = args.rest_hard
        if rest:
            self._rests_through[draw.task.id] = draw.epoch + rest
        try:
            return self._curriculum.observe(draw.task, outcomes)
        except Exception as error:
            raise self._fault("observe", error) from error

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        return {
            "position": self.position,
            "rests_through": dict(self._rests_through),
            "left_out": dict(self._left_out),
            "curriculum": self._curriculum.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume where a saved cursor was. A higher ``max_prompt_len`` lets tasks return."""
        self.position = int(state["position"])
        self._rests_through = dict(state["rests_through"])
        limit = self._args.max_prompt_len
        self._left_out |= {
            task: exceeded
            for task, exceeded in state.get("left_out", {}).items()
            if exceeded >= limit and task in self._by_id
        }
        self._curriculum.load(state.get("curriculum", {}))

    def _coming(self, number: int) -> Iterator[Draw]:
        """Yield the draws that may come from a number on, until too many in a row may not."""
        rest, refused = 1 + max(self._args.rest_easy, self._args.rest_hard), 0
        while refused <= rest * len(self._tasks) + MOST_REFUSED:
            task, epoch = self._choose(number), number // len(self._tasks)
            resting = self._rests_through.get(task.id, -1) >= epoch
            if resting or task.id in self._left_out:
                refused += 1
            else:
                refused = 0
                yield Draw(task, number, epoch, self.member.name)
            number += 1

    def _choose(self, number: int) -> Task:
        try:
            task = self._curriculum.choose(number)
            is_ours = self._by_id.get(task.id) is task
        except Exception as error:
            raise self._fault("choose", error) from error
        if not is_ours:
            raise TrainingError(f"{self._named}: choose returned a task that it was not given")
        return task

    def _fault(self, method: str, error: Exception) -> VfError:
        if isinstance(error, VfError):
            return error
        return TrainingError(f"{self._named}: {method} raised {type(error).__name__}: {error}")
