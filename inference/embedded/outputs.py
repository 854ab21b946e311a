"""Carrying outputs from the generation thread to the coroutines that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from transformers.generation.continuous_batching.continuous_api import OutputRouter


class Outputs(OutputRouter):  # type: ignore[misc]
    """Gives each request's outputs to its own event loop, and drops what nobody waits for.

    transformers' own router sends a whole batch to one loop, keeps the handlers of cancelled
    requests, and lets a closed loop kill the generation thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Any]]] = {}

    @contextmanager
    def of(self, request_id: str) -> Iterator[asyncio.Queue[Any]]:
        """Collect the outputs of a request, on the running loop, while the context is open."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting[request_id] = asyncio.get_running_loop(), queue
        try:
            yield queue
        finally:
            del self._waiting[request_id]

    def deliver(self, output: Any) -> None:
        """Hand over one output. Called on the generation thread."""
        if (waiting := self._waiting.get(output.request_id)) is not None:
            loop, queue = waiting
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(queue.put_nowait, output)

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Hand over the outputs of one forward pass. Called on the generation thread."""
        for output in outputs:
            self.deliver(output)
