"""An event loop in a thread of its own, whose owner keeps watching while it waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from vf.inference.completions import Completion
from vf.inference.model import Sampling
from vf.inference.token_client import TokenClient

T = TypeVar("T")
POLL_SECONDS = 0.25


class BackgroundLoop:
    """Runs coroutines in a daemon thread.

    Rollouts live here, so that the trainer's thread is free to train.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vf-rollouts", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], watch: Callable[[], None]) -> T:
        """Run a coroutine to completion and return its result.

        Args:
            work: The coroutine.
            watch: Called several times a second while waiting; whatever it raises ends the wait,
                cancels the work and is raised here. So a dead engine is noticed immediately.

        Raises:
            Exception: If the work or the watch raised it.
        """
        return self.wait(self.submit(work), watch)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine, and return without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, future: concurrent.futures.Future[T], watch: Callable[[], None]) -> T:
        """Wait for a submitted coroutine, as :meth:`call` does.

        Raises:
            Exception: If the work or the watch raised it.
        """
        try:
            while True:
                try:
                    return future.result(POLL_SECONDS)
                except concurrent.futures.TimeoutError:
                    if future.done():  # just now, or the work itself raised a TimeoutError
                        return future.result()
                    watch()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel everything that still runs, and end the thread. Safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()


@dataclass(frozen=True, slots=True)
class BackgroundSampler:
    """Samples in a background loop: the caller's own may end, or be held up by training.

    Attributes:
        loop: Where requests are sent and answered.
        client: Reaches the engine.
        check: Called before each request; it raises an error where there must be none now.
    """

    loop: BackgroundLoop
    client: TokenClient
    check: Callable[[], None]

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        """Sample one completion.

        Raises:
            ModelError: If the server failed, or its answer is incomplete.
        """
        self.check()
        work = self.client.complete(prompt_ids, sampling, stop_token_ids, conversation)
        return await asyncio.wrap_future(self.loop.submit(work))
