"""One engine's host, from the time when the engine answered until it stops to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.contract import Sandbox
from vf.sandbox.spec import SandboxSpec

WATCH = 15.0  # seconds between two looks at an engine that answers
TRIES = 2  # looks in a row without an answer, after which an engine is lost
SILENCE = 60.0  # seconds after which a lost engine's sandboxes are given up
FIRST_REST = 1.0  # seconds until a lost engine is tried again; doubled after each try
LONGEST_REST = 60.0  # seconds


class Host(Protocol):
    """What makes the sandboxes of one engine."""

    @property
    def engine(self) -> Engine:
        """Where."""
        ...

    @property
    def most(self) -> int:
        """How many sandboxes it may have at once."""
        ...

    def open(self, spec: SandboxSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Return a context that opens a new sandbox and destroys it at the end."""
        ...

    async def prefetch(self, spec: SandboxSpec | None, count: int = 1) -> None:
        """Build or pull the image of a spec, which will be asked for that many times."""
        ...

    def give_up(self, why: str) -> None:
        """Have whatever its sandboxes are doing fail, with this reason."""
        ...


H = TypeVar("H", bound=Host)


@dataclass(eq=False)
class Visit(Generic[H]):
    """A host, from the time when its engine answered until it stops to.

    Attributes:
        host: The host.
        cores: How many its machine has.
        users: Episodes that have one of its sandboxes, or wait for one.
        lost: Set once it does not answer any more.
        idle: Set while there are no users.
        images: Names of images known to be there.
        rest: Seconds that the host is avoided for after the next failure.
        rests_until: The monotonic time until which it is avoided.
    """

    host: H
    cores: int
    users: int = 0
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    images: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    rest: float = FIRST_REST
    rests_until: float = 0.0

    def __post_init__(self) -> None:
        """Nobody uses it yet."""
        self.idle.set()

    @property
    def queue(self) -> tuple[bool, bool, float]:
        """What orders hosts: first those that have not failed lately, with room, and less to do."""
        rests = time.monotonic() < self.rests_until
        return rests, self.users >= self.host.most, self.users / self.cores

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Count an episode."""
        self.users += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.users -= 1
            if not self.users:
                self.idle.set()

    def failed(self) -> None:
        """Avoid it for some time, and have it looked at."""
        self.rests_until = time.monotonic() + self.rest
        self.rest = min(2 * self.rest, LONGEST_REST)
        self.host.engine.suspect.set()

    async def watch(self) -> None:
        """Return once the engine does not answer."""
        engine, missed = self.host.engine, 0
        while missed < TRIES:
            if not missed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCH):
                        await engine.suspect.wait()
                engine.suspect.clear()
            missed = 0 if await engine.answers() else missed + 1

    async def end(self) -> None:
        """Return once nobody uses it.

        What its sandboxes do may end well while the engine is only busy. If that stays silent, it
        fails now: a call may have hours left.
        """
        while self.users:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await self.idle.wait()
            if self.users and not await self.host.engine.answers():
                self.host.give_up("its engine does not answer any more")
