"""Environments written with OpenEnv's own server API, and what serves them.

``python -m tests.bridges.openenv.openenv_servers PORT`` serves :class:`Guess` in a process that
can be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import date
from typing import Any, Literal

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Environment, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from pydantic import Field

from tests.waiting import wait_until

OPEN: set[int] = set()  # the environments of all sessions that have not been closed


class Say(Action):  # type: ignore[misc]
    message: str = Field(description="What you say.")


class Heard(Observation):  # type: ignore[misc]
    response: str = ""


class Counted(Environment):  # type: ignore[misc]
    """What the others share: which of them are open, and a state."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        OPEN.add(id(self))

    def close(self) -> None:
        OPEN.discard(id(self))

    @property
    def state(self) -> Any:
        return State(episode_id="one")

    def get_metadata(self) -> Any:
        return EnvironmentMetadata(name="test", description="Guess the number from 1 to 8.")


class Guess(Counted):
    """Say a number; words that are none make it do something that servers should not do."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **args: Any) -> Any:
        self.hidden = random.Random(seed).randint(1, args.get("high", 8))
        return Heard(response="I think of a number.")

    def step(self, action: Any, timeout_s: float | None = None, **args: Any) -> Any:
        raise NotImplementedError

    async def step_async(self, action: Any, timeout_s: float | None = None, **args: Any) -> Any:
        said = action.message
        if said == "hang":
            await asyncio.Event().wait()
        if said == "slow":
            await asyncio.sleep(0.5)
        if said == "raise":
            raise OSError("the disk is full")
        if said == "end":
            return Heard(response="Over.", done=True)
        if not said.isdigit():
            return Heard(response="Say a number.", reward=-0.5)
        if int(said) == self.hidden:
            return Heard(response="Right.", reward=1.0, done=True)
        return Heard(response="Higher." if int(said) < self.hidden else "Lower.", reward=0.0)


class Go(Action):  # type: ignore[misc]
    direction: Literal["left", "right"]
    steps: int = Field(default=1, ge=1, le=3)
    on: date = date(2026, 1, 1)  # of which a JSON schema says that it is a text


class Place(Observation):  # type: ignore[misc]
    place: int
    seen: list[str] = []
    note: str | None = None


class Line(Counted):
    """Go right to 4. Every action costs 1, arriving gives 10."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **args: Any) -> Any:
        self.place = 0
        return Place(place=0, seen=["a wall"])

    def step(self, action: Any, timeout_s: float | None = None, **args: Any) -> Any:
        self.place += action.steps * (1 if action.direction == "right" else -1)
        there = self.place >= 4
        return Place(place=self.place, reward=-1 + 10 * there, done=there)


class Desk(MCPEnvironment):  # type: ignore[misc]
    """Tools over MCP; ``submit`` is rewarded."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("desk")

        @server.tool()
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @server.tool()
        def fail() -> str:
            """Fail."""
            raise ValueError("nothing works")

        @server.tool()
        def submit(answer: int) -> str:
            """Submit your answer."""
            return "submitted"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **args: Any) -> Any:
        numbers = random.Random(seed)
        self.a, self.b = numbers.randint(1, 9), numbers.randint(1, 9)
        return Heard(response=f"What is {self.a} + {self.b}?")

    async def step_async(self, action: Any, timeout_s: float | None = None, **args: Any) -> Any:
        observation = await super().step_async(action, timeout_s=timeout_s)
        if isinstance(action, CallToolAction) and action.tool_name == "submit":
            observation.done = True
            observation.reward = float(action.arguments.get("answer") == self.a + self.b)
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **args: Any) -> Any:
        raise NotImplementedError

    @property
    def state(self) -> Any:
        return State(episode_id="one")


def guess_app(max_concurrent_envs: int = 8) -> Any:
    return create_app(Guess, Say, Heard, max_concurrent_envs=max_concurrent_envs)


def line_app() -> Any:
    return create_app(Line, Go, Place, max_concurrent_envs=8)


def desk_app() -> Any:
    return create_app(Desk, CallToolAction, CallToolObservation, max_concurrent_envs=8)


@contextlib.contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an app in a thread; yields its address."""
    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


if __name__ == "__main__":
    uvicorn.run(guess_app(), port=int(sys.argv[1]), log_level="error")
