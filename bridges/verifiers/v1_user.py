"""The user of a v1 conversation: what a package's own ``Env.run`` says, turn by turn.

Such a ``run`` holds an interaction with its one agent, and each ``turn`` of it is a message of the
user's that waits for the agent's answer. Here the agent is vf-rl's model, and ``run`` is suspended
while it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from vf.bridges.verifiers.checks import refuse
from vf.runtime.errors import EnvironmentFailure

if TYPE_CHECKING:
    from vf.bridges.verifiers.v1_rollout import V1Rollout

_OTHER_HOOKS = ("setup", "finalize", "complete", "start", "stop")


def load_user(name: str, environment_id: str, taskset_config: Any) -> Any | None:
    """Return the ``Env`` of a package, where it plays the user of one agent; None if it has none.

    Raises:
        ConfigError: If it has several agents, or does more than play the user.
    """
    from verifiers.v1.env import Env
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils import loaders

    cls = loaders.environment_class(environment_id)
    if cls is SingleAgentEnv:
        return None
    config = loaders.env_config_type(environment_id)(taskset=taskset_config)
    agents = _agents_of(config)
    if len(agents) != 1:
        of = f" of {' and '.join(agents)}" if agents else ""
        refuse(name, f"its own interplay of agents ({cls.__name__}{of})")
    for hook in _OTHER_HOOKS:
        if getattr(cls, hook) not in (getattr(Env, hook), getattr(SingleAgentEnv, hook)):
            refuse(name, f"more of its {cls.__name__} than run ({hook})")
    return loaders.load_environment(config)


class UserTurns:
    """The user's part in one rollout.

    Args:
        env: The package's ``Env``, whose ``run`` plays the user.
        rollout: The rollout, which was set up.
    """

    def __init__(self, env: Any, rollout: V1Rollout) -> None:
        from verifiers.v1.agent import Segment

        self._segment = Segment
        self._rollout = rollout
        self._messages: asyncio.Queue[list[Any] | None] = asyncio.Queue()
        self._answer: asyncio.Future[Any] | None = None
        self._held = False
        self._over = False
        [name] = _agents_of(env.config)
        self._run = asyncio.create_task(env.run(rollout.task, _Agents(name, self)))
        self._run.add_done_callback(lambda task: self._messages.put_nowait(None))

    async def next(self) -> list[Any] | None:
        """Return the user's next messages: none where the prompt is first, None at the end.

        Raises:
            Exception: If ``run`` raised it.
        """
        messages = await self._messages.get()
        if messages is None:
            self._run.result()
        return messages

    async def answer(self, messages: list[Any]) -> list[Any] | None:
        """Give the user the agent's answer, with its tool results; return as :meth:`next`."""
        assert self._answer is not None
        self._answer.set_result(self._segment(messages=messages))
        return await self.next()

    async def finish(self) -> None:
        """Tell the user that the conversation is over, and wait until ``run`` has ended.

        Raises:
            Exception: If ``run`` raised it.
        """
        self._over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._segment(messages=[], terminated=True))
        await self._run

    async def close(self) -> None:
        """End ``run``, if it has not ended."""
        self._run.cancel()
        await asyncio.wait({self._run})

    @asynccontextmanager
    async def interaction(self, task: Any, **borrowed: Any) -> AsyncIterator[_Interaction]:
        """Hold the one conversation."""
        if task is not self._rollout.task or self._held:
            raise EnvironmentFailure(
                "verifiers: the environment's run() opens a second conversation, or one on another "
                "task; that cannot be trained on here"
            )
        self._held = True
        yield _Interaction(self, self._rollout.trace)

    async def say(self, messages: list[Any]) -> Any:
        """Ask the agent; return the segment of the conversation that it answers with."""
        if self._over:
            raise RuntimeError("the exchange is over (the run ended); read interaction.trace")
        self._answer = asyncio.get_running_loop().create_future()
        self._messages.put_nowait(messages)
        return await self._answer


class _Interaction:
    """verifiers' ``Interaction``, by its public surface."""

    def __init__(self, user: UserTurns, trace: Any) -> None:
        self.trace = trace
        self._user = user
        self._prompted = trace.task.data.prompt is not None

    async def turn(self, message: Any = None) -> Any:
        """Say something, or nothing to hear what the agent answers to the task's prompt."""
        from verifiers.v1.dialects.chat import parse_message
        from verifiers.v1.types import UserMessage

        prompted, self._prompted = self._prompted, False
        if (message is None) != prompted:
            raise ValueError(
                "a task with a prompt is opened by a bare turn(), and any other turn has a message"
            )
        if message is None:
            return await self._user.say([])
        if isinstance(message, str):
            return await self._user.say([UserMessage(content=message)])
        return await self._user.say(
            [parse_message(part) if isinstance(part, dict) else part for part in message]
        )


class _Agents:
    """verifiers' ``Agents`` with one agent, under its name."""

    def __init__(self, name: str, user: UserTurns) -> None:
        setattr(self, name, _Agent(user))


class _Agent:
    """The agent as ``run`` sees it."""

    def __init__(self, user: UserTurns) -> None:
        self.interaction = user.interaction


def _agents_of(config: Any) -> list[str]:
    from verifiers.v1.agent import agent_config_fields

    return list(agent_config_fields(config))
