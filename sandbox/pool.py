"""A pool of fresh sandboxes, made before the episodes that need them.

Every sandbox is handed out once and destroyed after its episode, so that nothing that an episode
leaves behind can reach another. An engine makes only a few containers a second, however many are
requested at once, so the pool fills in the background while the model samples, makes only a few at
a time, and measures how long episodes waited for it.
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

PATIENCE = 5  # failures in a row after which waiting callers get the error
BACKOFF = 0.5  # seconds, times the failures in a row
LONGEST_DELAY = 30.0  # seconds


class Pooled(Protocol):
    """A sandbox, or an object with one, that knows at once whether it can still be used."""

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as this process knows."""
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
        beside: The exit stack that destroys its side services and proxy.
    """

    sandbox: S
    beside: contextlib.AsyncExitStack

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as this process knows."""
        return self.sandbox.alive

    async def close(self) -> None:
        """Destroy it, and what is beside it. Safe to call again, also after a cancellation."""
        await self.sandbox.close()
        await self.beside.aclose()


class Progress:
    """The progress of pools that share their room.

    Args:
        held_up: A function that returns for how many seconds there may be no room.

    Attributes:
        at: Monotonic time at which the last sandbox was handed out.
    """

    def __init__(self, held_up: Callable[[], float] = lambda: 0.0) -> None:
        self.at = -math.inf
        self.held_up = held_up


class SandboxPool(Generic[S]):
    """Keeps fresh sandboxes ready. Used as ``async with SandboxPool(...) as pool``.

    Args:
        make: Makes one sandbox.
        size: The number of sandboxes kept ready, on top of those in use; 0 makes them on request.
        concurrency: The number of sandboxes made at a time.
        max_age: Seconds after which one that nobody took is replaced: a sandbox has a lifetime,
            and the episode that gets it needs most of it.
        room: A function that returns how many more may be made now, if limits hold for several
            pools together.
        changed: A function called whenever there may be something to make: :meth:`fill` by default.
            Pools that share their room need a call of each one's.
        progress: The time of the last sandbox handed out by pools that share their room; by
            default, by this one.

    Raises:
        ValueError: If a number is negative, or 0 where that is not allowed.
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
        self._unclosed: list[S] = []  # those whose destruction was cancelled
        self._first_in_queue = asyncio.Lock()  # held by the first waiting caller
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None  # why none can ever be made
        self._last_error: BaseException | None = None
        self._streak = 0  # failures in a row
        self._paused_until = 0.0
        self._timers: set[asyncio.TimerHandle] = set()
        self._arrivals = OrderedDict[int, float]()  # times of waiting callers, the first one first
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
        """Open it; nothing is made until an episode waits, or :meth:`fill` is called."""
        self._open = True

    @property
    def idle(self) -> bool:
        """Whether it has no sandbox, makes none, and has no waiting callers."""
        held = self._ready or self._in_use or self._making or self._closing or self._unclosed
        return not (self._arrivals or held)

    @property
    def in_use(self) -> list[S]:
        """The sandboxes that episodes have."""
        return list(self._in_use.values())

    @property
    def first_arrival(self) -> float:
        """Monotonic time at which the longest-waiting caller arrived; inf if none."""
        return next(iter(self._arrivals.values()), math.inf)

    def stats(self) -> PoolStats:
        """Return the current counts."""
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
        """Keep another number ready; destroy the oldest ones beyond it."""
        self.size = size
        for _ in range(len(self._ready) - size):
            self.drop_one()

    def drop_one(self) -> None:
        """Destroy the oldest ready sandbox.

        Raises:
            IndexError: If no sandbox is ready.
        """
        self._destroy(self._ready.popleft()[1])

    async def filled(self, *, timeout: float = 300.0) -> None:
        """Wait until ``size`` sandboxes are ready.

        Raises:
            SandboxError: If they are not ready after ``timeout`` seconds, or cannot be made.
            ConfigError: If none can ever be made: no such image, for instance.
        """
        size, end = self.size, time.monotonic() + timeout
        await self._until(
            lambda: len(self._ready) >= size or None,
            lambda: end,
            f"{size} sandboxes were not ready after {timeout:g} s",
            contextlib.nullcontext(),
        )

    @contextlib.asynccontextmanager
    async def acquire(self, *, timeout: float = 300.0) -> AsyncIterator[S]:
        """Hand out a fresh sandbox; it is destroyed, in the background, on the way out.

        Callers are served in the order of arrival. Time in the queue does not count for the
        timeout, as long as others are served.

        Args:
            timeout: Seconds to wait while no sandbox is handed out to anyone.

        Raises:
            SandboxError: If none could be made, or none was handed out in time.
            ConfigError: If none can ever be made: no such image, for instance.
        """
        began, number = time.monotonic(), next(self._numbers)
        self._arrivals[number] = began
        message = f"no sandbox was handed out for {timeout:g} s"

        def deadline() -> float:
            return max(began, self._progress.at) + timeout + self._progress.held_up()

        try:
            sandbox = await self._until(self._pop_fresh, deadline, message, self._first_in_queue)
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
        take: Callable[[], T | None],
        deadline: Callable[[], float],
        message: str,
        lock: contextlib.AbstractAsyncContextManager[object],
    ) -> T:
        failed_before = self._failed
        async with lock:
            while True:
                if not self._open:
                    raise SandboxError("the pool of sandboxes is not open")
                if (result := take()) is not None:
                    return result
                if self._broken:
                    raise self._broken
                if self._streak >= PATIENCE and self._failed > failed_before:
                    problem = f"no sandbox could be made {self._streak} times in a row"
                    raise SandboxError(f"{problem}: {self._last_error}") from self._last_error
                if (left := deadline() - time.monotonic()) <= 0:
                    raise SandboxError(
                        f"{message}: {len(self._making)} being made, "
                        f"{len(self._arrivals)} episodes waiting, {self._failed} failed"
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
        """Start to make missing sandboxes.

        Args:
            spare: Also make those kept ready, for which no caller waits.
        """
        if not self._open or self._broken or time.monotonic() < self._paused_until:
            return
        # Sandboxes being destroyed still take room: if that falls behind, making waits for it.
        demand = len(self._arrivals) - len(self._ready) + (self.size if spare else 0)
        room = self.size + self._concurrency - len(self._closing)
        target = min(demand, room, 1 if self._streak >= PATIENCE else self._concurrency)
        missing = target - len(self._making)
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
            delay = min(BACKOFF * self._streak, LONGEST_DELAY)
            self._paused_until = time.monotonic() + delay
            log.warning("a sandbox could not be made; the next try is in %.1f s: %s", delay, error)
            self._later(delay + 0.001, self._fill)
        except Exception as error:  # another try would fail too: waiting callers get the error
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
