"""Whether tasks can be done by a model that is given tokens, and so reads text only."""

from __future__ import annotations

from collections.abc import Sequence

from vf.environments.environment import Environment
from vf.runtime.errors import ConfigError
from vf.traces.images import holds_images
from vf.traces.task import Task


def check_text_only(environment: Environment, tasks: Sequence[Task], reader: str, fix: str) -> None:
    """Check that nothing has to be seen.

    Args:
        environment: The definition.
        tasks: Its tasks.
        reader: The reader of text, for the error.
        fix: The alternative, for the error.

    Raises:
        ConfigError: If a task's prompt holds an image, or a tool says that it returns one.
    """
    if reason := shows_images(environment, tasks):
        raise ConfigError(
            f"environment {environment.id!r} has images ({reason}), and {reader} reads text "
            f"only: {fix}"
        )


def shows_images(environment: Environment, tasks: Sequence[Task]) -> str:
    """Return which task or tool shows an image; empty if none says that it does.

    Args:
        environment: The definition.
        tasks: Its tasks.
    """
    for task in tasks:
        if holds_images(task.prompt):
            return f"task {task.id!r} holds one"
    tools = environment.episode(0).toolbox.tools.values()
    return next((f"the tool {tool.name} returns images" for tool in tools if tool.draws), "")
