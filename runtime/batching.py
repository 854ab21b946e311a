"""Resources of one event loop: batched queries, and connections."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from vf.runtime.errors import fresh

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class PerLoop(Generic[T]):
    """One thing for each event loop, made at its first use there.

    Connections and futures belong to the loop that they were made in, but an environment may be
    run by one loop after the other.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def get(self) -> T:
        """Return the running loop's."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._make()
        return self._made[loop]

    def pop(self) -> T | None:
        """Return the running loop's, if there is one, and forget it."""
        return self._made.pop(asyncio.get_running_loop(), None)


class Batcher(Generic[Q, A]):
    """Questions that are asked at about the same time are answered together.

    While all batches are in flight, questions wait for the next to end.

    Args:
        answer: Answers a list of questions, in their order.
        size: Most questions in one batch.
        concurrency: Most batches at once.
        spread: Share the questions among the free batches, where that is quicker than to answer
            them in one.
    """

    def __init__(
        self,
        answer: Callable[[list[Q]], Awaitable[list[A]]],
        *,
        size: int,
        concurrency: int,
        spread: bool = False,
    ) -> None:
        self._lanes = PerLoop(lambda: _Lane(answer, size, concurrency, spread))

    async def ask(self, question: Q) -> A:
        """Return the answer.

        Raises:
            Exception: If answering the batch raised it; every question of it gets a copy.
        """
        return await self._lanes.get().add(question)


class _Lane(Generic[Q, A]):
    """The questions of one loop."""

    def __init__(
        self,
        answer: Callable[[list[Q]], Awaitable[list[A]]],
        size: int,
        concurrency: int,
        spread: bool,
    ) -> None:
        self.answer = answer
        self.size = size
        self.spread = spread
        self.free = concurrency
        self.waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    def add(self, question: Q) -> asyncio.Future[A]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self.waiting.append((question, future))
        if self.free and len(self.waiting) == 1:
            loop.call_soon(self.start)  # what else is asked until then comes along
        return future

    def start(self) -> None:
        while self.free and self.waiting:
            shares = self.free if self.spread else 1
            count = min(self.size, math.ceil(len(self.waiting) / shares))
            batch = [self.waiting.popleft() for _ in range(count)]
            batch = [pair for pair in batch if not pair[1].done()]  # some have stopped waiting
            if batch:
                self.free -= 1
                task = asyncio.create_task(self.run(batch))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
                self.end_if_unheard(task, [future for _, future in batch])

    def end_if_unheard(self, task: asyncio.Task[None], futures: list[asyncio.Future[A]]) -> None:
        """End a batch when nobody waits for its answers any more."""

        def look(future: asyncio.Future[A]) -> None:
            if not task.done() and all(future.done() for future in futures):
                task.cancel()

        for future in futures:
            future.add_done_callback(look)

    async def run(self, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self.answer([question for question, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        except Exception as error:
            for _, future in batch:
                if not future.done():  # one exception raised by many would mix their tracebacks
                    future.set_exception(fresh(error))
        finally:
            for _, future in batch:
                future.cancel()  # only if the batch was ended: otherwise they are done
            self.free += 1
            self.start()
