"""What chooses the next tasks: the protocol, and how one is found by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from vf.environments.locate import load_object
from vf.runtime.errors import ConfigError, VfError, did_you_mean
from vf.traces.task import Task
from vf.trainer.collecting.curricula import League, Stages, SuccessRate, Uniform

ENTRY_POINT_GROUP = "vf.curricula"
KNOWN: dict[str, Callable[..., Any]] = {
    "uniform": Uniform,
    "success_rate": SuccessRate,
    "stages": Stages,
    "league": League,
}


class Curriculum(Protocol):
    """Chooses which task of an environment comes next, given the outcomes so far.

    One's own is a class with these methods, whose constructor takes the tasks of the train split,
    a seed, and ``curriculum_args`` as keywords. All of its randomness must derive from the seed and
    the draw's number: then a resumed run draws what the unbroken one would have drawn.

    Tasks that rest, or whose first prompts are too long, are none of its business: where it chooses
    one, it is asked again, with the next number.
    """

    def choose(self, number: int) -> Task:
        """Return the task of a draw. It may be asked ahead, so this must change nothing.

        Args:
            number: The number of the draw, from 0; each is used once.
        """
        ...

    def observe(self, task: Task, outcomes: Sequence[float]) -> str | None:
        """Take note of a finished group. Those of a step come together, in the order of the draws.

        Args:
            task: The group's.
            outcomes: Those of its scored rollouts, each in [0, 1]; at least one.

        Returns:
            What the user should know, such as that a stage begins; or None.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs, as JSON values."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Resume from what :meth:`state` returned."""
        ...


def make_curriculum(
    name: str, args: dict[str, Any], tasks: Sequence[Task], seed: int, where: str = "env"
) -> Curriculum:
    """Return the curriculum of a name.

    Args:
        name: ``uniform``, ``success_rate``, ``stages``, ``league``, ``module:Class``,
            ``file.py:Class``, or an entry point of the group ``vf.curricula``.
        args: ``curriculum_args``.
        tasks: The train split; at least one.
        seed: The run's.
        where: The environment's table, for the errors.

    Raises:
        ConfigError: If there is none of this name (the nearest is suggested), or it does not take
            the arguments, or one of them is out of range.
    """
    setting = f"{where}.curriculum"
    factory = find_curriculum(name, where)
    try:
        inspect.signature(factory).bind(tasks, seed, **args)
    except TypeError as error:
        takes = [*inspect.signature(factory).parameters][2:]
        unknown = next((key for key in args if key not in takes), "")
        problem = (
            f"there is no {unknown!r}.{did_you_mean(unknown, takes)}" if unknown else str(error)
        )
        raise ConfigError(
            f"{setting}_args: {problem} {name!r} takes: {', '.join(takes) or 'no arguments'}"
        ) from None
    try:
        made = factory(tasks, seed, **args)
    except VfError as error:
        raise ConfigError(f"{setting}_args.{error}") from error
    except Exception as error:
        raise ConfigError(f"{setting} = {name!r}: {type(error).__name__}: {error}") from error
    lacking = [
        method for method in ("choose", "observe", "state", "load") if not hasattr(made, method)
    ]
    if lacking:
        raise ConfigError(
            f"{setting} = {name!r} has no method {lacking[0]}: see vf.Curriculum for what is needed"
        )
    return made  # type: ignore[no-any-return]


def find_curriculum(name: str, where: str = "env") -> Callable[..., Any]:
    """Return the class or function that makes a curriculum.

    Args:
        name: The curriculum, in a form that :func:`make_curriculum` takes.
        where: The environment's table, for the errors.

    Raises:
        ConfigError: If there is none of this name; the nearest is suggested.
    """
    setting = f"{where}.curriculum"
    if name in KNOWN:
        return KNOWN[name]
    installed = entry_points(group=ENTRY_POINT_GROUP)
    if name in installed.names:
        loaded = installed[name].load()
    elif ":" in name:
        loaded = load_object(name, setting)
    else:
        names = [*KNOWN, *installed.names]
        raise ConfigError(
            f"{setting} = {name!r}: unknown.{did_you_mean(name, names)} Known: {', '.join(names)}; "
            "or name your own, my_curriculum.py:MyCurriculum"
        )
    if not callable(loaded):
        raise ConfigError(f"{setting} = {name!r} is no class, but {type(loaded).__name__}")
    return loaded  # type: ignore[no-any-return]
