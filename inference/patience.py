"""How long to wait for an answer, how many concurrent requests, and what to retry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from vf.inference.wire import AnswerTimeout, Unavailable, pause
from vf.runtime.errors import ModelError
from vf.runtime.open_files import connections, limit
from vf.runtime.own_deadline import own_deadline

T = TypeVar("T")
log = logging.getLogger(__name__)

AWAY_SECONDS = 900.0  # a publish may take 10 minutes, and starting a server 15
AT_ONCE_SECONDS = 5.0  # a connection that breaks this soon was refused, and little was sampled
AWAY_PAUSE = 2.0  # seconds between two attempts at a server that is away, at most
TIMEOUT_TOKENS = 1024  # that a timeout is for, where the server does not count its tokens
LOOKS = 8  # for progress, in the time that may pass without any
SILENT_SECONDS = 60.0  # between two warnings that a server is away


class Again(Exception):
    """An attempt has failed, and may be repeated.

    Attributes:
        seconds: After how long.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


@dataclass(slots=True)
class Request:
    """What has been tried for one request, of one server or of several in turn.

    Attributes:
        max_tokens: Most tokens that the answer has.
        tries: Attempts that failed.
        refused: When it was refused first, by the event loop's clock.
    """

    max_tokens: int
    tries: int = 0
    refused: float | None = None


class Room:
    """As many requests at once as the limit of open files allows; the others wait.

    Args:
        name: The server's name, for the message that some have to wait.
        most: Requests at once, if the open files allow that many.
    """

    def __init__(self, name: str, most: int | None = None) -> None:
        self._name = name
        self._size = connections() if most is None else min(most, connections())
        self._slots = asyncio.Semaphore(self._size)
        self._says = self._size != most  # whether the open files are what makes requests wait

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait until one more request may be sent, which has ended when the block ends."""
        if self._slots.locked() and self._says:
            self._says = False
            log.warning(
                "%s gets %d requests at once, and the rest wait: the limit of open files is "
                "%d (ulimit -n)",
                self._name,
                self._size,
                limit(),
            )
        async with self._slots:
            yield


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that is waited for: until when, since when, and for how many tokens at most."""

    deadline: asyncio.Timeout
    since: float
    max_tokens: int


class Patience:
    """Waits for the answers of one server.

    - An answer is given up when ``timeout`` seconds pass without progress. Progress is any token
      that the server samples, for whichever request: so neither a long answer nor the server's
      queue is timed out. Where the server does not count its tokens, progress is an answer to any
      request, and the time is in proportion to ``max_tokens``, for more than 1,024. Time in which
      the server pauses (for training, or new weights) does not count.
    - An answer that was given up is not asked for again: the same seed would take as long. Its
      connection is closed, so that the server stops sampling it.
    - A server that refuses connections or breaks them at once, or answers 429, 502, 503 or what
      else says that it is busy or down (:data:`vf.inference.wire.AWAY`), is waited for. One that
      has never answered is not: its address may be wrong.
    - Requests beyond the connections that the limit of open files allows wait here, before any
      clock starts.

    Args:
        name: The server's, for messages.
        timeout: Seconds without progress.
        max_retries: Attempts after the first where an error is not known to pass; 0 fails at the
            first of any kind.
        backoff: Seconds before the first retry; doubles each time.
        away: Seconds for which a server that is away is waited for.
        count: Returns how many tokens the server has processed, or None if it does not say.
        still: Whether the server samples nothing at present, to train or to change its weights.
        most: Requests at once, if the open files allow that many.
        known: Whether the server is known to have answered, such as to another process.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float,
        max_retries: int,
        backoff: float = 0.25,
        away: float = AWAY_SECONDS,
        count: Callable[[], Awaitable[float | None]] | None = None,
        still: Callable[[], Awaitable[bool]] | None = None,
        most: int | None = None,
        has_answered: bool = False,
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._max_retries = max_retries
        self._backoff = backoff
        self._away = away if max_retries else 0.0
        self._count = count
        self._still = still
        self._room = Room(name, most)
        self._has_answered = has_answered  # whether the server has ever answered
        self._away_since: float | None = None
        self._silent_until = 0.0
        self._waiting: set[_Waiting] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._progress = 0.0  # when there was some last
        self._tokens: float | None = None

    async def ask(self, send: Callable[[], Awaitable[T]], max_tokens: int) -> T:
        """Return the answer to a request.

        Args:
            send: Makes one attempt. Whatever it raises but :class:`Unavailable` is final.
            max_tokens: Most tokens that the answer has.

        Raises:
            ModelError: If there was no progress, or the server was away for too long.
        """
        request = Request(max_tokens)
        with own_deadline():
            async with self._room.place():
                while True:
                    try:
                        return await self.attempt(send, request)
                    except Again as again:
                        await asyncio.sleep(again.seconds)

    async def attempt(self, send: Callable[[], Awaitable[T]], request: Request) -> T:
        """Make one attempt at a request whose place and repetition the caller sees to.

        Args:
            send: The function of :meth:`ask`.
            request: Counts the attempts.

        Raises:
            Again: If the request failed and may be repeated.
            ModelError: If the request failed for good.
        """
        started = asyncio.get_running_loop().time()
        try:
            async with self._watched(request.max_tokens):
                answer = await send()
        except AnswerTimeout:
            raise
        except Unavailable as error:
            raise Again(self._pause(request, error, started)) from error
        self._has_answered, self._away_since = True, None
        self._progress = asyncio.get_running_loop().time()
        return answer

    def _pause(self, request: Request, error: Unavailable, started: float) -> float:
        """Return the seconds until a request may be repeated.

        Raises:
            ModelError: If the request has been repeated often enough.
        """
        now = asyncio.get_running_loop().time()
        request.tries += 1
        self._has_answered |= error.answered
        wait = pause(self._backoff, request.tries)
        at_once = not error.answered and now - started < AT_ONCE_SECONDS
        if self._has_answered and (error.away or at_once):
            request.refused = now if request.refused is None else request.refused
            left = self._seconds_left(error, request.refused)
            if left <= 0 and request.tries > self._max_retries:
                raise ModelError(
                    f"{error} (for {self._away:g} s, after which it is given up)"
                ) from (error.__cause__ or error)
            wait = min(wait, AWAY_PAUSE)
            if error.after is not None and left > 0:
                wait = min(max(wait, error.after), left)
        elif request.tries > self._max_retries:
            raise ModelError(f"{error} (after {request.tries} attempts)") from (
                error.__cause__ or error
            )
        elif error.after is not None:
            wait = max(wait, error.after)
        return wait

    def _seconds_left(self, error: Unavailable, refused: float) -> float:
        """Return for how long the server is still waited for; say it where it has just gone."""
        now = asyncio.get_running_loop().time()
        if self._away_since is None:
            self._away_since = now
            if self._away and now >= self._silent_until:
                self._silent_until = now + SILENT_SECONDS
                log.warning("%s; it is waited for, up to %g s", error, self._away)
        return min(refused, self._away_since) + self._away - now

    @asynccontextmanager
    async def _watched(self, max_tokens: int) -> AsyncIterator[None]:
        """End the block when there is no progress.

        Raises:
            ModelError: If there is no progress for that long.
        """
        try:
            async with asyncio.timeout(None) as deadline:
                waiting = _Waiting(deadline, asyncio.get_running_loop().time(), max_tokens)
                self._waiting.add(waiting)
                if self._watcher is None:
                    self._watcher = asyncio.create_task(self._watch())
                try:
                    yield
                finally:
                    self._waiting.discard(waiting)
                    if not self._waiting and self._watcher is not None:
                        self._watcher.cancel()
                        self._watcher = None
        except TimeoutError as error:
            if not deadline.expired():
                raise
            seconds = f"{self._seconds(max_tokens):g} s"
            what = "did not answer within" if self._tokens is None else "sampled no token for"
            raise ModelError(
                f"{self._name} {what} {seconds}, its timeout (generation_timeout in a TOML)"
            ) from error

    async def _watch(self) -> None:
        """Look for progress, and end requests that have waited for it for too long."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._timeout / LOOKS)
            if await self._stands_still() or await self._has_counted():
                self._progress = now()
            for request in self._waiting:
                idle = now() - max(request.since, self._progress)
                if idle >= self._seconds(request.max_tokens) and not request.deadline.expired():
                    request.deadline.reschedule(now())

    async def _stands_still(self) -> bool:
        return self._still is not None and await self._still()

    async def _has_counted(self) -> bool:
        """Return whether the server has processed tokens since it was last asked."""
        if self._count is None:
            return False
        try:
            async with asyncio.timeout(self._timeout / LOOKS):
                tokens = await self._count()
        except TimeoutError:
            return False
        if tokens is None or tokens == self._tokens:
            return False
        self._tokens = tokens
        return True

    def _seconds(self, max_tokens: int) -> float:
        """Return how long an answer may take without progress."""
        if self._tokens is not None:
            return self._timeout
        return self._timeout * max(1.0, max_tokens / TIMEOUT_TOKENS)
