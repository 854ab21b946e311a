"""What environments may define for validation: scripts that solve a task, or that try to cheat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from vf.environments.environment import Environment
from vf.inference.models.scripted_model import Script
from vf.traces.task import Task


@runtime_checkable
class HasOracle(Protocol):
    """An environment whose tasks have known solutions."""

    def oracle(self, task: Task) -> Script | None:
        """Return the replies of a model that solves this task, for ``vf-rl eval --validate``.

        The lines of a :class:`~vf.inference.models.scripted_model.ScriptedModel`: one text or tool
        call a turn, or a function of the messages so far. It may use ``task.answer`` and must earn
        a reward of 1. None means that there is no such script.

        Example::

            def oracle(self, task: vf.Task) -> Script:
                return [{"look_up": {"word": task.info["word"]}}, f"Answer: {task.answer}"]
        """
        ...


@runtime_checkable
class HasHackers(Protocol):
    """An environment with scripts of its own that try to earn a reward without solving a task."""

    def hackers(self, task: Task) -> Mapping[str, Script]:
        """Return such scripts by name, for ``vf-rl eval --validate``.

        Scripts as of :meth:`HasOracle.oracle`, in addition to those that are tried on every
        environment. Each must earn as little as agents that know nothing. The names are the same
        for every task.
        """
        ...


def oracle_of(environment: Environment, task: Task) -> Script | None:
    """Return the replies of a model that solves a task; None if the environment has none."""
    return environment.oracle(task) if isinstance(environment, HasOracle) else None


def hackers_of(environment: Environment, task: Task) -> Mapping[str, Script]:
    """Return the environment's own scripts that try to cheat in a task, by name."""
    return environment.hackers(task) if isinstance(environment, HasHackers) else {}
