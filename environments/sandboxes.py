"""The sandboxes that an environment's tasks need: checked first, and prepared ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vf.environments.environment import Environment
from vf.runtime.errors import ConfigError, VfError, author_lines
from vf.sandbox.source import BoundedSource, NamedSource, SandboxSource
from vf.sandbox.spec import SandboxSpec
from vf.traces.task import Task

if TYPE_CHECKING:
    from vf.sandbox.stats import ImageStats


@runtime_checkable
class HasSandboxSpec(Protocol):
    """An environment whose tasks may have sandboxes of their own."""

    def sandbox_spec(self, task: Task) -> SandboxSpec | None:
        """Return the spec of this task's sandbox.

        None uses the settings of the environment's ``sandbox``. It is called before the episode
        begins, and must return the same every time: images are built or pulled ahead, and equal
        specs share a pool.

        Example::

            def sandbox_spec(self, task: vf.Task) -> vf.SandboxSpec:
                return vf.SandboxSpec(build=vf.Build(TASKS / task.id), writable=True)
        """
        ...


def brings_sandboxes(environment: Environment) -> bool:
    """Return whether its tasks may have sandboxes of their own."""
    return isinstance(environment, HasSandboxSpec)


def spec_of(environment: Environment, task: Task) -> SandboxSpec | None:
    """Return what a task's sandbox is made from; None for the settings' own.

    Raises:
        ConfigError: ``sandbox_spec`` failed, or returned something else.
    """
    if not isinstance(environment, HasSandboxSpec):
        return None
    where = f"environment {environment.id or type(environment).__name__!r}"
    try:
        spec: object = environment.sandbox_spec(task)
    except VfError:
        raise
    except Exception as error:
        lines = author_lines(error, environment.__module__)
        raise ConfigError(f"{where}: sandbox_spec of task {task.id!r} failed:\n{lines}") from error
    if not isinstance(spec, SandboxSpec | None):
        raise ConfigError(
            f"{where}: sandbox_spec of task {task.id!r} must return a vf.SandboxSpec or None, got "
            f"{spec!r}"
        )
    return spec


def sources(environment: Environment) -> list[SandboxSource]:
    """Return where sandboxes come from: services that are sources, and ``self.source``."""
    services = [*environment.services, getattr(environment, "source", None)]
    return list(
        dict.fromkeys(service for service in services if isinstance(service, SandboxSource))
    )


def backend_of(environment: Environment) -> str:
    """Return what its sandboxes are, such as ``"docker"``; nothing where it has none, or own ones.

    Several are separated by commas.
    """
    named = [source for source in sources(environment) if isinstance(source, NamedSource)]
    return ", ".join(dict.fromkeys(source.backend for source in named))


def check_sandboxes(environment: Environment, tasks: Iterable[Task]) -> None:
    """Look whether the sandboxes of tasks can be made, as far as that shows at once.

    Raises:
        ConfigError: If one cannot; names the task and the field.
    """
    for task in tasks if brings_sandboxes(environment) else ():
        spec = spec_of(environment, task)
        for source in sources(environment):
            try:
                source.check_spec(spec)
            except ConfigError as error:
                raise ConfigError(f"task {task.id!r}: {error}") from error


def most_containers(environment: Environment) -> int | None:
    """Return how many containers an environment may have at once on an engine; None for no bound.

    They are divided between worker processes, each of which needs one.
    """
    bounded = [source for source in sources(environment) if isinstance(source, BoundedSource)]
    bounds = [source.max_containers for source in bounded]
    return min((most for most in bounds if most is not None), default=None)


async def prefetch(environment: Environment, tasks: Iterable[Task]) -> None:
    """Have the images of tasks built or pulled, and return when all are there or have failed.

    What fails here fails again in the rollout, and is its error.

    Raises:
        ConfigError: If a sandbox cannot be made as its task has it.
    """
    if brings_sandboxes(environment):
        specs = [spec_of(environment, task) for task in tasks]
        await asyncio.gather(*(source.prefetch(specs) for source in sources(environment)))


def image_stats(environment: Environment) -> list[ImageStats]:
    """Return what has happened to the images so far, by engine. For any thread."""
    if not brings_sandboxes(environment):
        return []
    return [stats.images for source in sources(environment) for stats in source.stats()]
