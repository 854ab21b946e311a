"""One engine's host while its engine responds."""

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

PING_INTERVAL = 15.0  # seconds between two pings of an engine that responds
MAX_MISSED = 2  # pings in a row without an answer, after which an engine is lost
SILENCE = 60.0  # seconds after which a lost engine's sandboxes are given up
FIRST_DELAY = 1.0  # seconds until a lost engine is tried again; doubled after each try
LONGEST_DELAY = 60.0  # seconds


class Host(Protocol):
    """Makes the sandboxes of one engine."""

    @property
    def engine(self) -> Engine:
        """The engine."""
        ...

    @property
    def most(self) -> int:
        """The number of sandboxes that it may have at once."""
        ...

    def open(self, spec: SandboxSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Return a context that opens a new sandbox and destroys it at the end."""
        ...

    async def prefetch(self, spec: SandboxSpec | None, count: int = 1) -> None:
        """Build or pull the image of a spec, for which ``count`` requests will follow."""
        ...

    def give_up(self, reason: str) -> None:
        """Let all calls of its sandboxes fail, with this reason."""
        ...


H = TypeVar("H", bound=Host)


@dataclass(eq=False)
class HostConnection(Generic[H]):
    """A host while its engine responds.

    Attributes:
        host: The host.
        cores: The number of cores of its machine.
        users: The number of episodes that have one of its sandboxes, or wait for one.
        lost: Set once it has stopped responding.
        idle: Set while there are no users.
        images: The tasks that bring images there, by name.
        delay: Seconds that the host is avoided for after the next failure.
        avoided_until: The monotonic time until which it is avoided.
    """

    host: H
    cores: int
    users: int = 0
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    images: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    delay: float = FIRST_DELAY
    avoided_until: float = 0.0

    def __post_init__(self) -> None:
        """Start without users."""
        self.idle.set()

    @property
    def queue(self) -> tuple[bool, bool, float]:
        """A sort key: first hosts that have not failed lately, with room, and with less to do."""
        avoided = time.monotonic() < self.avoided_until
        return avoided, self.users >= self.host.most, self.users / self.cores

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
        """Avoid it for some time, and let its engine be pinged."""
        self.avoided_until = time.monotonic() + self.delay
        self.delay = min(2 * self.delay, LONGEST_DELAY)
        self.host.engine.suspect.set()

    async def watch(self) -> None:
        """Return once the engine does not respond."""
        engine, missed = self.host.engine, 0
        while missed < MAX_MISSED:
            if not missed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PING_INTERVAL):
                        await engine.suspect.wait()
                engine.suspect.clear()
            missed = 0 if await engine.answers() else missed + 1

    async def end(self) -> None:
        """Return once it has no users.

        Calls of its sandboxes may still succeed if the engine is only busy. If it stays silent,
        they fail now: a call may have hours left.
        """
        while self.users:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await self.idle.wait()
            if self.users and not await self.host.engine.answers():
                self.host.give_up("its engine does not answer any more")
