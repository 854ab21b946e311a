"""The state of an inference server: the trainer's thread changes it, rollouts read it."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import uuid4

POLL_SECONDS = 0.1


class Served(NamedTuple):
    """A model on a server.

    Attributes:
        model: Its name there.
        version: The version of its weights.
        life: How often the server began.
        cache_salt: Requests share computed contexts only with those of the same salt; empty where
            the server's cache holds nothing of older weights.
    """

    model: str
    version: int = 0
    life: int = 0
    cache_salt: str = ""


class Serving:
    """The served model, its version, and whether the server can be asked at all.

    Thread-safe: the trainer publishes from its thread while rollouts sample in theirs.

    Args:
        model: Name of the model on the server.
        version: Version of its weights.
        keeps_cache: Whether the server's cache outlives new weights. Each version has a salt then,
            so that no conversation begins with what older weights have computed.
    """

    def __init__(self, model: str, version: int = 0, *, keeps_cache: bool = False) -> None:
        self.keeps_cache = keeps_cache
        self._run = uuid4().hex  # another run's weights have the same versions
        self._served = Served(model, version, cache_salt=self._salt(version))
        self._in_use: Counter[str] = Counter()
        self._under_way = 0
        self._lock = threading.Lock()
        self._up = True
        self._held = False
        self._stills = 0
        self._failure: str | None = None
        self._most = math.inf
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_up(self) -> bool:
        """Whether there is a server to ask."""
        return self._up

    @property
    def held(self) -> bool:
        """Whether new requests wait at present, and those under way may pause."""
        return self._held

    @property
    def served(self) -> Served:
        """What requests ask for from now on."""
        return self._served

    def switch(self, model: str, version: int) -> None:
        """Send requests to come to another model or version; those in progress continue."""
        with self._lock:
            salt = self._salt(version)
            self._served = self._served._replace(model=model, version=version, cache_salt=salt)

    def _salt(self, version: int) -> str:
        return f"{self._run}-{version}" if self.keeps_cache else ""

    @property
    def has_room(self) -> bool:
        """Whether a request may begin: the server is up, holds none back, and has not too many."""
        with self._lock:
            return self._open()

    @property
    def under_way(self) -> int:
        """How many requests there are at present."""
        return self._under_way

    def begin(self) -> Served | None:
        """Count a request that asks for what is served now; None where it has to wait.

        It is known to be under way until :meth:`end`.
        """
        with self._lock:
            if not self._open():
                return None
            self._in_use[self._served.model] += 1
            self._under_way += 1
            return self._served

    def end(self, served: Served) -> None:
        """Count a request no longer."""
        with self._lock:
            self._in_use[served.model] -= 1
            self._under_way -= 1

    @contextmanager
    def hold(self, *, drain: bool) -> Iterator[None]:
        """Let new requests wait until the block ends, as new weights are on their way.

        Args:
            drain: Whether to wait first until those under way have ended, of which each has a
                deadline of its own.
        """
        with self._lock:  # whoever begins is counted before it is looked whether any is under way
            self._held = True
        try:
            while drain and self.under_way:
                time.sleep(POLL_SECONDS)
            with self.still():
                yield
        finally:
            self._held = False
            self._changed()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Note that the server samples nothing until the block ends; it may still be asked.

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
        """Return whether requests under way may pause at present."""
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
            if not self._up:
                return
            self._up = False
            self._served = self._served._replace(life=self._served.life + 1)
        self._changed()

    def up(self) -> None:
        """Let requests through again."""
        with self._lock:
            self._up = True
        self._changed()

    def fail(self, reason: str) -> None:
        """Give up: whoever waits for the server learns why."""
        self._failure = reason
        self._changed()

    @property
    def failure(self) -> str | None:
        """Why the server will not come back; None if it may, or is there."""
        return self._failure

    @property
    def absence(self) -> str:
        """Why there is no server at the moment."""
        return self._failure or "the inference server is being started again"

    def limit(self, most: float) -> None:
        """Let no request begin while there are so many under way."""
        if most != self._most:
            self._most = most
            self._changed()

    def listen(self, listener: Callable[[], None]) -> None:
        """Have something called, in any thread, when requests may begin that had to wait."""
        self._listeners.append(listener)

    def _open(self) -> bool:
        return self._up and not self._held and self._under_way < self._most

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()
