"""Episodes that TRL runs: it generates, and calls vf-rl's tools as methods."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from vf.bridges.trl.as_trace import as_trace
from vf.bridges.trl.methods import as_method
from vf.environments.environment import Environment
from vf.environments.sandboxes import spec_of
from vf.runtime.calling import call
from vf.runtime.errors import (
    ConfigError,
    EnvironmentFailure,
    InfrastructureError,
    RubricError,
    ToolFailure,
)
from vf.runtime.seeding import derive_seed
from vf.traces.messages import ToolCall
from vf.traces.task import Task
from vf.traces.trace import Failure, Trace

_OURS = ("reset", "get_reward")  # methods that TRL itself calls


@dataclass(frozen=True)
class Home:
    """The common part of all episodes of an environment in TRL.

    Attributes:
        environment: The definition.
        name: Its name in errors and logs.
        tasks: Its tasks, by ``"split/id"``.
        seed: Seed of the episodes.
    """

    environment: Environment
    name: str
    tasks: Mapping[str, Task]
    seed: int

    def rollout_seed(self, key: object, number: int) -> int:
        """Return the seed of a task's rollout, the number-th of this process."""
        rank = os.environ.get("RANK", "0")  # as accelerate and torchrun set it
        return derive_seed(self.seed, "trl", rank, str(key), number)

    def task(self, key: object) -> Task:
        """Return a task from the value in the dataset's column.

        Raises:
            ConfigError: If there is no such task.
        """
        if not isinstance(key, str) or key not in self.tasks:
            raise ConfigError(
                f"to_trl: {self.name} has no task {key!r}. Train on the datasets that to_trl gave, "
                "with remove_unused_columns = False (as is TRL's default)"
            )
        return self.tasks[key]


class Episode:
    """One episode: its tools, and in the end its score.

    Args:
        home: The environment.
        key: The key of the task.
        number: The number of the episode, on which its random numbers depend.
    """

    def __init__(self, home: Home, key: object, number: int) -> None:
        self._home = home
        self._task = home.task(key)
        self._seed = home.rollout_seed(key, number)
        self._environment = home.environment.episode(derive_seed(self._seed, "environment"))
        self._environment.task_sandbox = spec_of(home.environment, self._task)
        self._environment.turn = -1
        self._running = 0
        self._failure: InfrastructureError | ConfigError | None = None

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Carry out a tool call and return what the model sees.

        Raises:
            InfrastructureError: If the tool failed. TRL reports that to the model, and the episode
                will have no reward.
            ConfigError: If the environment is set up wrongly, or the tool returned an image.
        """
        environment = self._environment
        if self._failure is not None:
            raise self._failure
        if not self._running:  # TRL does not say which calls are of one turn: it makes them at once
            environment.turn += 1
        self._running += 1
        request = ToolCall(f"call_{len(environment.tool_events)}", name, json.dumps(arguments))
        try:
            [message] = await environment.toolbox.run(
                [request], turn=environment.turn, timeout=environment.tool_timeout
            )
            if message.images:
                raise ConfigError(f"to_trl: the tool {name} returned an image: TRL gets text only")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            typed = isinstance(error, InfrastructureError | ConfigError)
            self._failure = error if typed else ToolFailure(str(error))  # type: ignore[assignment]
            raise
        finally:
            self._running -= 1
        return message.content

    async def finish(
        self, prompt: Sequence[Mapping[str, Any]], completion: Any, tokens: int
    ) -> Trace:
        """Score the finished conversation, and release the episode's resources.

        Args:
            prompt: The prompt's messages.
            completion: The messages after the prompt, in TRL's format.
            tokens: Tokens of the completion.

        Raises:
            ConfigError: If the environment, or a tool, is set up wrongly.
        """
        environment = self._environment
        trace = as_trace(self._home.name, environment, self._task, prompt, completion, tokens)
        trace.seed = self._seed
        try:
            if self._failure is not None:
                raise self._failure
            async with asyncio.timeout(environment.timeout):
                trace.score = await environment.rubric.score(trace)
        except TimeoutError:
            self._fail(trace, RubricError(f"scoring took longer than {environment.timeout:g} s"))
        except InfrastructureError as error:
            self._fail(trace, error)
        finally:
            await self._close(trace)
        return trace

    async def _close(self, trace: Trace) -> None:
        for end in (self._environment.close, self._environment.release):
            try:
                await call(end)
            except InfrastructureError as error:
                self._fail(trace, error)
            except Exception as error:
                self._fail(trace, EnvironmentFailure(f"{end.__name__} raised {error!r}"))

    @staticmethod
    def _fail(trace: Trace, error: InfrastructureError) -> None:
        if trace.error is None:
            trace.error = Failure.of(error)
        trace.score = None


def environment_class(home: Home) -> type[Any]:
    """Return the class that TRL makes an environment of for each rollout it has at once.

    Its ``reset`` begins an episode; its other methods are the tools.

    Raises:
        ConfigError: If TRL cannot have a tool of this name or with these parameters.
    """
    numbers = count()

    def reset(self: Any, **row: Any) -> None:
        """Begin an episode of the row's task."""
        self._episode = Episode(home, row.get("task"), next(numbers))

    methods: dict[str, Any] = {"reset": reset}
    for name, tool in home.environment.episode(0).toolbox.tools.items():
        if name in _OURS or name.startswith("_"):
            raise ConfigError(
                f"to_trl: {home.name} has a tool {name!r}, a name that TRL keeps for itself; "
                "rename it, or use loop='vf'"
            )
        methods[name] = as_method(tool)
    return type(type(home.environment).__name__, (), methods)
