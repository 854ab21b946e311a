"""The bodies of requests: how much of them is held at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from vf.inference.endpoint.dialect import Refusal

MOST_BYTES = 32 * 2**20  # of a body: some eight million tokens
MOST_AT_ONCE = 2 * MOST_BYTES  # of all of a rollout's that wait for an answer; parsed, it is more


class Bodies:
    """The bodies of all requests that wait for an answer.

    What an agent's model gets to run holds the key, too: it must not be able to fill this process's
    memory.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()  # bytes, by rollout

    @asynccontextmanager
    async def read(self, request: web.Request, rollout: str) -> AsyncIterator[bytes]:
        """Read a body, which counts until the end of the block.

        Raises:
            Refusal: It is too large, or there is too much at once.
        """
        announced = request.content_length
        size = min(MOST_BYTES if announced is None else announced, MOST_BYTES)
        if self._held[rollout] + size > MOST_AT_ONCE:
            text = f"the bodies of this rollout's requests have more than {MOST_AT_ONCE:,} bytes"
            raise Refusal(f"{text} at once", 429, code="rate_limit_exceeded")
        self._held[rollout] += size
        try:
            raw = await request.read()
            self._held[rollout] += len(raw) - size
            size = len(raw)
            yield raw
        except web.HTTPRequestEntityTooLarge:
            raise Refusal(f"the body is larger than {MOST_BYTES:,} bytes", 413) from None
        finally:
            self._held[rollout] -= size
            if not self._held[rollout]:
                del self._held[rollout]
