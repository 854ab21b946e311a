"""How large a request may be, whoever sends it: in bytes, and in entries of its lists.

A body is read by code that holds this process's lock, and each entry becomes an object of Python's.
Within these limits, neither keeps other requests waiting for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")

MOST_BYTES = 8 * 2**20  # of a body, about two million tokens
MOST_MESSAGES = 10_000
MOST_PARTS = 1_000  # of one message
MOST_TOOLS = 512
MOST_FIELDS = 1_000  # of an object
MOST_STOPS = 16  # texts
MOST_STOP_IDS = 256
MOST_REQUESTS = 64  # of one rollout that are worked on at a time: other rollouts have their turns
SMALL = 2**13  # bytes of a body that is read at once, on the event loop
PER_TOKEN = 32  # bytes; a token of any language has a quarter of that in JSON
BESIDE = 2**20  # bytes of what is not part of the context, such as schemas


def most_bytes(context: int | None) -> int:
    """Return how many bytes a body may have, given how many tokens the context holds."""
    return MOST_BYTES if context is None else min(MOST_BYTES, BESIDE + PER_TOKEN * context)


async def off_loop(size: int, read: Callable[[], T]) -> T:
    """Run ``read``, which reads a body of ``size`` bytes: in a thread, unless that is small.

    One thread for all of them: event loops and generation compete with it for Python's lock, and
    would with each other one.
    """
    if size <= SMALL:
        return read()
    reader = _reader()
    return await asyncio.get_running_loop().run_in_executor(reader.thread, reader.run, read)


class _Reader:
    """A thread that rests, before it reads the next body, for as long as the last one took.

    A parser in C keeps Python's lock for all of a body. Without rests, an event loop would get it
    once for each body, and so wait for many of them to answer one small request.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="vf-bodies")
        self._rested = 0.0  # when the next one may begin, in monotonic time

    def run(self, read: Callable[[], T]) -> T:
        time.sleep(max(0.0, self._rested - time.monotonic()))
        began = time.thread_time()
        try:
            return read()
        finally:
            self._rested = time.monotonic() + time.thread_time() - began


@cache
def _reader() -> _Reader:
    return _Reader()
