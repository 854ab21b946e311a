"""Fresh sandboxes, made ahead of the episodes that need them.

Every sandbox is handed out once and destroyed after its episode, so nothing that one episode leaves
behind can reach the next. An engine makes only a few containers a second however many are asked for
at once, so the pool fills in the background while the model thinks, makes only a few at a time, and
says how long episodes waited for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from vf.runtime.errors import InfrastructureError, SandboxError
from vf.sandbox.stats import PoolStats

log = logging.getLogger("vf.sandbox")

PATIENCE = 5  # failures in a row after which those who wait get the error
BACKOFF = 0.5  # seconds, times the failures in a row
LONGEST_REST = 30.0  # seconds


class Pooled(Protocol):
    """A sandbox, or what holds one, that knows without asking whether it can still be used."""

    @property
    def alive(self) -> bool:
        """Whether it can be used, for all that is known."""
        ...

    async def close(self) -> None:
        """Destroy it."""
        ...


S = TypeVar("S", bound=Pooled)
T = TypeVar("T")


@dataclass(slots=True)
class Opened(Generic[S]):
    """A sandbox of a pool.

    Attributes:
        sandbox: The sandbox.
        beside: Destroys what is beside it.
    """

    sandbox: S
    beside: contextlib.AsyncExitStack

    @property
    def alive(self) -> bool:
        """Whether it can be used, for all that is known."""
        return self.sandbox.alive

    async def close(self) -> None:
        """Destroy it, and what is beside it. Safe to call again, after a cancellation above all."""
        await self.sandbox.close()
        await self.beside.aclose()


class Progress:
    """What pools that share their room have handed out.

    Args:
        held_up: Returns for how many seconds more none may be handed out for lack of room.

    Attributes:
        at: Monotonic time of the last one.
    """

    def __init__(self, held_up: Callable[[], float] = lambda: 0.0) -> None:
        self.at = -math.inf
        self.held_up = held_up


class SandboxPool(Generic[S]):
    """Keeps fresh sandboxes ready. Used as ``async with SandboxPool(...) as pool``.

    Args:
        make: Makes one sandbox.
        size: How many to keep ready, on top of those in use; 0 makes them when they are asked for.
        concurrency: How many to make at a time.
        max_age: Seconds after which one that nobody took is replaced: a sandbox has a lifetime,
            and the episode that gets it needs most of it.
        room: How many more may be made now, where bounds hold for several pools together.
        changed: Called whenever there may be something to make: :meth:`fill` by default. Pools
            that share their room need a call of each one's.
        progress: What pools that share their room have handed out; by default, what this one has.

    Raises:
        ValueError: A number is negative, or 0 where that is not allowed.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[S]],
        size: int,
        *,
        concurrency: int = 4,
        max_age: float = 1800.0,
        room: Callable[[], int] | None = None,
        changed: Callable[[], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        if size < 0 or concurrency < 1 or not max_age > 0:
            raise ValueError(
                "concurrency and max_age must be positive and size not negative, "
                f"got {concurrency}, {max_age} and {size}"
            )
        self.size = size
        self._make = make
        self._concurrency = concurrency
        self._max_age = max_age
        self._room = room
        self._fill = changed or self.fill
        self._progress = progress or Progress()
        self._open = False
        self._ready: deque[tuple[float, S]] = deque()
        self._in_use: dict[int, S] = {}
        self._making: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._unclosed: list[S] = []  # whose destruction was cancelled
        self._line = asyncio.Lock()  # its holder is the first in the queue of those who wait
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None  # why none can ever be made
        self._last_error: BaseException | None = None
        self._streak = 0  # failures in a row
        self._rest_until = 0.0
        self._timers: set[asyncio.TimerHandle] = set()
        self._arrivals = OrderedDict[int, float]()  # of those who wait, the first one first
        self._numbers = itertools.count()
        self._made = self._failed = self._acquired = 0
        self._waited = self._longest = 0.0

    async def __aenter__(self) -> Self:
        """Open it, and start to fill; nothing is waited for."""
        self.open()
        self._fill()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    def open(self) -> None:
        """Open it; nothing is made until somebody waits, or :meth:`fill` is called."""
        self._open = True

    @property
    def idle(self) -> bool:
        """Whether it has no sandbox, makes none, and nobody waits for one."""
        held = self._ready or self._in_use or self._making or self._closing or self._unclosed
        return not (self._arrivals or held)

    @property
    def in_use(self) -> list[S]:
        """Those that episodes have."""
        return list(self._in_use.values())

    @property
    def first_arrival(self) -> float:
        """Monotonic time at which the first of those who wait has come; infinity without any."""
        return next(iter(self._arrivals.values()), math.inf)

    def stats(self) -> PoolStats:
        """Return what the pool is doing now."""
        return PoolStats(
            size=self.size,
            ready=len(self._ready),
            starting=len(self._making),
            in_use=len(self._in_use),
            closing=len(self._closing),
            waiting=len(self._arrivals),
            made=self._made,
            failed=self._failed,
            acquired=self._acquired,
            waited=self._waited,
            longest_wait=self._longest,
        )

    def resize(self, size: int) -> None:
        """Keep another number ready from now on; those too many are destroyed, the oldest first."""
        self.size = size
        for _ in range(len(self._ready) - size):
            self.drop_one()

    def drop_one(self) -> None:
        """Destroy the oldest one that is ready.

        Raises:
            IndexError: None is.
        """
        self._destroy(self._ready.popleft()[1])

    async def filled(self, count: int | None = None, *, timeout: float = 300.0) -> None:
        """Wait until ``count`` are ready; all by default.

        Raises:
            SandboxError: They are not after ``timeout`` seconds, or cannot be made.
            ConfigError: None can ever be made: no such image, say.
        """
        enough = min(self.size if count is None else count, self.size)
        late = f"{enough} sandboxes were not ready after {timeout:g} s"
        over, line = time.monotonic() + timeout, contextlib.nullcontext()
        await self._until(lambda: len(self._ready) >= enough or None, lambda: over, late, line)

    @contextlib.asynccontextmanager
    async def acquire(self, *, timeout: float = 300.0) -> AsyncIterator[S]:
        """Hand out a fresh sandbox; it is destroyed, in the background, on the way out.

        Who comes first is served first. The queue is no part of the timeout: as long as others
        are served, it is a matter of time.

        Args:
            timeout: Seconds to wait for as long as nobody is handed one.

        Raises:
            SandboxError: None could be made, or nobody was handed one in time.
            ConfigError: None can ever be made: no such image, say.
        """
        began, number = time.monotonic(), next(self._numbers)
        self._arrivals[number] = began
        late = f"no sandbox was handed out for {timeout:g} s"

        def over() -> float:
            return max(began, self._progress.at) + timeout + self._progress.held_up()

        try:
            sandbox = await self._until(self._pop_fresh, over, late, self._line)
        finally:
            del self._arrivals[number]
            wait = time.monotonic() - began
            self._waited += wait
            self._longest = max(self._longest, wait)
        self._acquired += 1
        self._progress.at = time.monotonic()
        self._in_use[id(sandbox)] = sandbox
        self._fill()
        try:
            yield sandbox
        finally:
            if self._in_use.pop(id(sandbox), None) is not None:
                self._destroy(sandbox)

    async def close(self) -> None:
        """Destroy every sandbox, those in use too, and wait until they are gone.

        Episodes that still wait for one, or use one, get a SandboxError.
        """
        self._open = False
        self._changed.set()
        for timer in self._timers:
            timer.cancel()
        for task in self._making:
            task.cancel()
        await asyncio.gather(*self._making, return_exceptions=True)
        left = [sandbox for _, sandbox in self._ready] + list(self._in_use.values())
        self._ready.clear()
        self._in_use.clear()
        for sandbox in left:
            self._destroy(sandbox)
        while self._closing or self._unclosed:
            left, self._unclosed = self._unclosed, []
            for sandbox in left:
                self._destroy(sandbox)
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def _until(
        self,
        found: Callable[[], T | None],
        over: Callable[[], float],
        late: str,
        line: contextlib.AbstractAsyncContextManager[object],
    ) -> T:
        failed_before = self._failed
        async with line:
            while True:
                if not self._open:
                    raise SandboxError("the pool of sandboxes is not open")
                if (result := found()) is not None:
                    return result
                if self._broken:
                    raise self._broken
                if self._streak >= PATIENCE and self._failed > failed_before:
                    what = f"no sandbox could be made {self._streak} times in a row"
                    raise SandboxError(f"{what}: {self._last_error}") from self._last_error
                if (left := over() - time.monotonic()) <= 0:
                    raise SandboxError(
                        f"{late}: {len(self._making)} being made, {len(self._arrivals)} episodes "
                        f"waiting, {self._failed} failed"
                        + (f", the last with: {self._last_error}" if self._last_error else "")
                    )
                self._fill()
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()

    def _pop_fresh(self) -> S | None:
        while self._ready:
            born, sandbox = self._ready.popleft()
            if sandbox.alive and time.monotonic() - born < self._max_age:
                return sandbox
            self._failed += not sandbox.alive
            self._destroy(sandbox)
        return None

    def fill(self, *, spare: bool = True) -> None:
        """Start to make what is missing.

        Args:
            spare: Also what nobody waits for yet.
        """
        if not self._open or self._broken or time.monotonic() < self._rest_until:
            return
        # What is being destroyed still takes room: if that falls behind, making waits for it.
        wanted = len(self._arrivals) - len(self._ready) + (self.size if spare else 0)
        room = self.size + self._concurrency - len(self._closing)
        at_once = min(wanted, room, 1 if self._streak >= PATIENCE else self._concurrency)
        missing = at_once - len(self._making)
        if missing > 0 and self._room is not None:
            missing = min(missing, self._room())
        for _ in range(missing):
            self._making.add(task := asyncio.create_task(self._make_one()))
            task.add_done_callback(self._making.discard)

    async def _make_one(self) -> None:
        try:
            sandbox = await self._make()
        except (InfrastructureError, OSError) as error:
            self._failed += 1
            self._streak += 1
            self._last_error = error
            rest = min(BACKOFF * self._streak, LONGEST_REST)
            self._rest_until = time.monotonic() + rest
            log.warning("a sandbox could not be made; the next try is in %.1f s: %s", rest, error)
            self._later(rest + 0.001, self._fill)
        except Exception as error:  # another try would fail too: those who wait get the error
            self._broken = error
        else:
            self._made += 1
            self._streak = 0
            self._last_error = None
            self._ready.append((time.monotonic(), sandbox))
            self._later(self._max_age, self._drop_stale)
        self._making.discard(asyncio.current_task())
        self._changed.set()
        self._fill()

    def _drop_stale(self) -> None:
        while self._ready and time.monotonic() - self._ready[0][0] >= self._max_age:
            self._destroy(self._ready.popleft()[1])
        self._fill()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            call()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)

    def _destroy(self, sandbox: S) -> None:
        async def destroy() -> None:
            try:
                await sandbox.close()
            except InfrastructureError as error:
                log.warning("a sandbox could not be destroyed: %s", error)

        def done(task: asyncio.Task[None]) -> None:
            self._closing.discard(task)
            if task.cancelled():  # perhaps before it began: a loop that ends cancels everything
                self._unclosed.append(sandbox)
            self._fill()

        task = asyncio.create_task(destroy())
        self._closing.add(task)
        task.add_done_callback(done)
