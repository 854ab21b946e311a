"""What an inference server serves now: the trainer's thread changes it, rollouts read it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from vf.runtime.errors import ServerDown

POLL_SECONDS = 0.1


class Served(NamedTuple):
    """A model's name on the server, the version of its weights, and how often the server began."""

    model: str
    version: int = 0
    life: int = 0


class Serving:
    """The served model, its version, and whether the server can be asked at all.

    Thread-safe: the trainer publishes from its thread while rollouts sample in theirs.

    Args:
        model: Name of the model on the server.
        version: Version of its weights.
    """

    def __init__(self, model: str, version: int = 0) -> None:
        self._served = Served(model, version)
        self._in_use: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._up = True
        self._held = False
        self._stills = 0
        self._failure: str | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is a server to ask."""
        return self._up

    @property
    def held(self) -> bool:
        """Whether new requests wait at present, and those under way may stand still."""
        return self._held

    @property
    def served(self) -> Served:
        """What requests ask for from now on."""
        return self._served

    def switch(self, model: str, version: int) -> None:
        """Send requests to come to another model or version; those under way go on."""
        with self._lock:
            self._served = self._served._replace(model=model, version=version)

    @contextmanager
    def lease(self) -> Iterator[Served]:
        """Ask for what is served now; it is known to be in use until the block ends.

        Raises:
            ServerDown: There is no server at the moment.
        """
        with self._lock:
            if not self._up:
                raise ServerDown(self._failure or "the inference server is being started again")
            served = self._served
            self._in_use[served.model] += 1
        try:
            yield served
        finally:
            with self._lock:
                self._in_use[served.model] -= 1

    @asynccontextmanager
    async def request(self) -> AsyncIterator[Served]:
        """Lease what is served, once nothing holds requests back; see :meth:`lease`.

        Raises:
            ServerDown: There is no server at the moment.
        """
        while True:
            with self.lease() as served:
                # Whoever holds from now on waits for this lease: it is already counted.
                if not self._held:
                    yield served
                    return
            await asyncio.sleep(POLL_SECONDS)

    @contextmanager
    def hold(self, *, drain: bool) -> Iterator[None]:
        """Let new requests wait until the block ends, as new weights are on their way.

        Args:
            drain: Whether to wait first until those under way have ended, of which each has a
                deadline of its own.
        """
        self._held = True
        try:
            while drain and self._in_use.total():
                time.sleep(POLL_SECONDS)
            with self.still():
                yield
        finally:
            self._held = False

    @contextmanager
    def still(self) -> Iterator[None]:
        """Note that the server samples nothing until the block ends; it may be asked all the same.

        Meanwhile the time of no request runs out.
        """
        with self._lock:
            self._stills += 1
        try:
            yield
        finally:
            with self._lock:
                self._stills -= 1

    def is_still(self) -> bool:
        """Return whether requests under way may stand still at present."""
        return self._stills > 0

    def in_use(self, model: str) -> bool:
        """Return whether any request under way asks for this model."""
        with self._lock:
            return self._in_use[model] > 0

    def lost(self, served: Served) -> bool:
        """Return whether the server that gave this lease has gone down since."""
        return not self._up or served.life != self._served.life

    def down(self) -> None:
        """Refuse requests: the server has gone, and is to be started again."""
        with self._lock:
            if self._up:
                self._up = False
                self._served = self._served._replace(life=self._served.life + 1)

    def up(self) -> None:
        """Let requests through again."""
        with self._lock:
            self._up = True

    def fail(self, reason: str) -> None:
        """Give up: whoever waits for the server is told why."""
        self._failure = reason

    async def available(self) -> None:
        """Wait until the server can be asked.

        Raises:
            ServerDown: It will not come back.
        """
        while not self._up:
            if self._failure is not None:
                raise ServerDown(self._failure)
            await asyncio.sleep(POLL_SECONDS)
