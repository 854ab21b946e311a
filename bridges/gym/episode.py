"""One rollout, carried on by whoever gives the model's answers."""

from __future__ import annotations

import asyncio
import copy
import math
import time

from vf.environments.environment import Environment
from vf.environments.runner import CLOSE_TIMEOUT, rollout
from vf.inference.model import Conversation, Reply, Sampling
from vf.runtime.errors import EnvironmentFailure
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

ENDING = 2 * CLOSE_TIMEOUT  # seconds: a rollout closes two things, and gives each so long


class Episode:
    """The one rollout loop, with a model that waits to be told what to say.

    All of its methods run in one event loop. The environment's ``timeout`` counts only the time
    in which the environment works, not the time in which it waits for an answer.

    Args:
        environment: The definition.
        task: The problem.
        seed: Seed of the rollout.

    Attributes:
        messages: What was said so far.
        trace: The rollout's record, once it has ended.
    """

    def __init__(self, environment: Environment, task: Task, seed: int) -> None:
        self.messages: list[Message] = []
        self.trace: Trace | None = None
        self._timeout = self._left = environment.timeout
        self._environment = copy.copy(environment)
        self._environment.timeout = math.inf  # the rollout's clock does not stop for an answer
        self._task, self._seed = task, seed
        self._asked = asyncio.Event()
        self._answer: asyncio.Future[Message]
        self._rollout: asyncio.Task[Trace] | None = None

    @property
    def patience(self) -> float:
        """Seconds after which :meth:`advance` must have returned."""
        return self._left + ENDING

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Wait for the answer, as the rollout's model."""
        self.messages = list(conversation.messages)
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.set()
        return Reply(await self._answer)

    async def advance(self, reply: Message | None = None) -> list[Message]:
        """Begin, or give the model's answer; go on until it is asked again, or to the end.

        Returns:
            The messages that are new to the model.

        Raises:
            EnvironmentFailure: The environment took too long.
            ConfigError: It is set up wrongly.
        """
        heard = 0 if reply is None else len(self.messages) + 1
        self._asked.clear()
        if reply is None or self._rollout is None:
            self._rollout = asyncio.create_task(
                rollout(self._environment, self._task, self, seed=self._seed)
            )
        else:
            self._answer.set_result(reply)
        await self._until_asked(self._rollout)
        if self._rollout.done():
            self.trace = self._rollout.result()
            self.messages = self.trace.messages
        return self.messages[heard:]

    async def cancel(self) -> None:
        """End the rollout, if it has not ended; its environment is closed."""
        if self._rollout is not None and not self._rollout.done():
            self._rollout.cancel()
            await asyncio.wait([self._rollout], timeout=ENDING)

    async def _until_asked(self, rollout: asyncio.Task[Trace]) -> None:
        asked = asyncio.create_task(self._asked.wait())
        began = time.monotonic()
        try:
            await asyncio.wait(
                [rollout, asked], timeout=self._left, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            asked.cancel()
            self._left = max(0.0, self._left - (time.monotonic() - began))
        if not self._asked.is_set() and not rollout.done():
            await self.cancel()
            raise EnvironmentFailure(f"the episode took longer than its {self._timeout:g} s")
