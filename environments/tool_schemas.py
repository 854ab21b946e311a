"""The tools that an environment's episodes offer, known before the first episode."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from vf.environments.environment import Environment
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError
from vf.traces.task import Task

PATIENCE = 10.0  # seconds for the one `reset`, and again for its `close`


async def tool_schemas(environment: Environment, task: Task) -> list[dict[str, Any]]:
    """Return the tools of an environment in OpenAI's format: the definition's, or an episode's.

    Where the definition has none and there is a ``reset`` of its own, which may set ``self.tools``,
    an episode is reset to see them, unless that is declared expensive. One whose ``reset`` fails or
    takes too long counts as without: its rollouts will say what is wrong.

    Args:
        environment: The definition.
        task: The task to reset it for.

    Raises:
        ConfigError: If a tool is invalid.
    """
    episode = environment.episode(0)
    schemas = episode.toolbox.schemas()
    own_reset = type(environment).reset is not Environment.reset
    if schemas or not own_reset or environment.expensive_reset:
        return schemas
    try:
        async with asyncio.timeout(PATIENCE):
            await call(episode.reset, task)
            await episode.settle()
        return episode.toolbox.schemas()
    except ConfigError:
        raise
    except Exception:
        return []
    finally:
        with suppress(Exception):  # a rollout will say so
            async with asyncio.timeout(PATIENCE):
                await end_episode(episode)


async def end_episode(episode: Environment) -> None:
    """Close an episode and, even if that fails, all that it holds."""
    try:
        await call(episode.close)
    finally:
        await episode.release()
