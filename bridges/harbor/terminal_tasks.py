"""The bundled tasks for a terminal, which are task folders."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from vf.bridges.harbor.find import read_tasks
from vf.bridges.harbor.make import harbor
from vf.environments.environment import Environment
from vf.runtime.errors import ConfigError
from vf.sandbox.hosting.source import Sandboxes

FOLDER = Path(__file__).with_name("bundled")
Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[Level, ...] = ("easy", "medium", "hard")


def terminal_tasks(
    sandbox: Sandboxes = "docker",
    levels: Sequence[Level] = LEVELS,
    only: Sequence[str] = ("*",),
    bash_timeout: float = 120.0,
    max_turns: int = 50,
    max_tokens: int | None = None,
) -> Environment:
    """Solve tasks in a container's terminal: shell, Git, data, small services, bugs.

    Ten tasks of each level, twenty to train on and ten held out. Their images are built from the
    one that ``vf-rl sandbox build`` makes.

    Args:
        sandbox: Source of the containers; see :func:`~vf.sandbox.hosting.source.sandbox_source`.
        levels: Levels to use, of ``easy``, ``medium`` and ``hard``.
        only: Patterns of the names of tasks to use, such as ``"fix-*"``.
        bash_timeout: Seconds for one command.
        max_turns: Maximum answers of the model in one episode.
        max_tokens: Maximum tokens sampled in one episode; None for no limit.

    Raises:
        ConfigError: If an argument cannot be used, or no task is left.
    """
    unknown = [level for level in levels if level not in LEVELS]
    if unknown or not levels:
        raise ConfigError(f"env.args.levels takes some of {', '.join(LEVELS)}, got {levels!r}")
    chosen = [
        task.id
        for task in read_tasks(FOLDER)
        if task.metadata["difficulty"] in levels
        and any(fnmatchcase(task.id, pattern) for pattern in only)
    ]
    if not chosen:
        raise ConfigError(f"env.args.only: no task of these levels is called {', '.join(only)}")
    return harbor(
        str(FOLDER),
        sandbox,
        only=chosen,
        bash_timeout=bash_timeout,
        max_turns=max_turns,
        max_tokens=max_tokens,
    )
