"""Answers that are being sampled, and the clients that wait for them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from vf.inference.endpoint.dialect import Answered, Refusal

GRACE_SECONDS = 5.0  # for which an answer whose client has gone waits for the client's retry


class UnderWay:
    """The answers of one rollout that are being sampled, and those that were given.

    Made in the rollout's own context, in which its answers are sampled: deadlines that do not
    count the model's time find their clock there.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._by_key: dict[int, asyncio.Task[Answered]] = {}
        self._clients: dict[asyncio.Task[Answered], int] = {}  # of each that is not done
        self._closed = False

    @property
    def clients(self) -> int:
        """How many clients wait."""
        return sum(self._clients.values())

    def find(self, key: int) -> asyncio.Task[Answered] | None:
        """Return the answer to an equal request, given or under way; None if there is none."""
        return self._by_key.get(key)

    def start(
        self, answer: Coroutine[Any, Any, Answered], key: int | None
    ) -> asyncio.Task[Answered]:
        """Begin to sample an answer."""
        task = self._loop.create_task(answer, context=self._context.copy())
        self._clients[task] = 0
        if key is not None:
            self._by_key[key] = task
        task.add_done_callback(lambda done: self._done(done, key))
        return task

    async def wait(self, task: asyncio.Task[Answered]) -> Answered:
        """Wait for an answer. When all its clients have gone, it is cancelled after a while.

        Raises:
            Refusal: If there is no answer, or the rollout has ended.
        """
        if not task.done():
            self._clients[task] += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise ended() from None
            raise
        finally:
            if task in self._clients:
                self._clients[task] -= 1
                self._loop.call_later(GRACE_SECONDS, self._give_up, task)

    async def close(self) -> None:
        """Cancel what is under way, and wait for its end."""
        self._closed = True
        tasks = list(self._clients)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_up(self, task: asyncio.Task[Answered]) -> None:
        if self._clients.get(task) == 0:
            task.cancel()

    def _done(self, task: asyncio.Task[Answered], key: int | None) -> None:
        del self._clients[task]
        failed = task.cancelled() or task.exception() is not None
        if failed and key is not None and self._by_key.get(key) is task:
            del self._by_key[key]


def ended() -> Refusal:
    """Return what every request gets after the rollout."""
    return Refusal("this rollout has ended", 410, code="rollout_ended")
