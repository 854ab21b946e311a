"""One episode's session with an OpenEnv server, over OpenEnv's own client."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vf.runtime.errors import EnvironmentFailure, ToolError

NO_ACTION = "the environment does not take this as an action"
_CODE = re.compile(r"\(code: (\w+)\)\s*$")
_FULL = "CAPACITY_REACHED"
_REFUSED = "VALIDATION_ERROR"
_CLOSING = 3.0  # seconds that a server gets to say goodbye, after which it is left
_PAUSE = 0.25  # seconds between two tries to get into a server that is full


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer to a reset or a step.

    Attributes:
        observation: Its fields.
        reward: None if it gave none.
        done: The episode is over.
    """

    observation: dict[str, Any]
    reward: float | None
    done: bool


@dataclass(eq=False)
class Session:
    """One client and its one session: it never begins a second one unnoticed.

    OpenEnv's client connects again where its connection is lost. That is a new session, in which
    nothing has happened yet, so here it is an error.

    Args:
        make_client: Makes the client.
        where: The server's address, for the errors.
        patience: Seconds for one answer, and to get into a server that is full.
    """

    make_client: Callable[[], Any]
    where: str
    patience: float
    _client: Any = field(default=None, init=False)

    async def open(self, first: Callable[[Any], Awaitable[Any]]) -> Any:
        """Connect, and return the result of the first request.

        If the server has no room for another session, this is repeated until the patience is over.

        Args:
            first: The first request, a function of the client.

        Raises:
            EnvironmentFailure: If it cannot be reached, is full, or fails.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience
        while True:
            self._client = self.make_client()
            try:
                await self._answered("connect", self._client.connect())
                _stay(self._client)
                return await self._answered("the first question", first(self._client))
            except _Full as full:
                await self.close()
                if loop.time() > deadline:
                    raise EnvironmentFailure(
                        f"openenv: {self.where}: the server is full, and was for "
                        f"{self.patience:g} s ({full}): lower max_concurrent, or give the server "
                        "a larger max_concurrent_envs"
                    ) from full
                await asyncio.sleep(_PAUSE)

    async def reset(self, arguments: Mapping[str, Any]) -> Answer:
        """Connect, and begin an episode.

        Raises:
            EnvironmentFailure: If the server cannot be reached, fails, does not answer in time, or
                does not answer with an observation.
        """
        return self._read(await self.open(lambda client: client.reset(**arguments)))

    async def step(self, action: Any) -> Answer:
        """Act.

        Raises:
            ToolError: If the server refuses the action.
            EnvironmentFailure: If the server fails as in :meth:`reset`, or the connection was lost.
        """
        return self._read(await self._answered("step", self._client.step(action)))

    async def close(self) -> None:
        """Leave the server, if it still responds."""
        client, self._client = self._client, None
        if client is not None:
            try:
                async with asyncio.timeout(_CLOSING):
                    await client.close()
            except TimeoutError:
                return  # the client finishes closing by itself
            except Exception as error:
                raise EnvironmentFailure(
                    f"openenv: {self.where}: close: {type(error).__name__}: {error}"
                ) from error

    async def _answered(self, request: str, answer: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self.patience):
                return await answer
        except TimeoutError as error:
            raise EnvironmentFailure(
                f"openenv: {self.where}: {request}: no answer within {self.patience:g} s"
            ) from error
        except Exception as error:
            # Any failure of a server: it is gone, sends a page of HTML, or an error of its own.
            code = _CODE.search(str(error)) if isinstance(error, RuntimeError) else None
            if code is not None and code[1] == _FULL:
                raise _Full(str(error)) from error
            if code is not None and code[1] == _REFUSED and request == "step":
                raise ToolError(NO_ACTION) from error
            raise EnvironmentFailure(
                f"openenv: {self.where}: {request}: {type(error).__name__}: {error}"
            ) from error

    def _read(self, result: Any) -> Answer:
        """Return a client's result, if it is one."""
        observation = getattr(result, "observation", None)
        if observation is not None and hasattr(observation, "model_dump"):
            observation = observation.model_dump(exclude={"reward", "done"})
        reward, done = getattr(result, "reward", None), getattr(result, "done", None)
        if not isinstance(observation, dict) or not observation or not isinstance(done, bool):
            raise EnvironmentFailure(
                f"openenv: {self.where}: the answer is no observation: {repr(result)[:200]}"
            )
        number = isinstance(reward, int | float) and math.isfinite(reward)
        if reward is not None and not number:
            raise EnvironmentFailure(f"openenv: {self.where}: the reward is {repr(reward)[:100]}")
        return Answer(observation, None if reward is None else float(reward), done)


class _Full(Exception):
    """The server has no place for another session."""


def _stay(client: Any) -> None:
    """Make a connected client fail instead of connecting again."""
    connection = client._ws

    async def still_connected() -> Any:
        if client._ws is not connection:
            raise ConnectionError("the session was lost")
        return client

    client._connect_async = still_connected
