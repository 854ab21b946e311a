"""The bodies of requests: how much of them is held at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from vf.inference.endpoint.dialect import TOO_LONG, Refusal
from vf.inference.request_limits import MOST_BYTES, most_bytes

MOST_AT_ONCE = 4 * MOST_BYTES  # of all of a rollout's that wait for an answer; parsed, it is more


class RequestBodies:
    """The bodies of all requests that wait for an answer.

    What an agent's model gets to run holds the key, too: it must not be able to fill this process's
    memory.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()  # bytes, by rollout

    @asynccontextmanager
    async def read(
        self, request: web.Request, rollout: str, context: int | None
    ) -> AsyncIterator[bytes]:
        """Read a body, which counts until the end of the block.

        Args:
            request: The request.
            rollout: The id of the rollout that it belongs to.
            context: The model's context in tokens; None if that is not known.

        Raises:
            Refusal: If the body is too large, or there is too much at once.
        """
        announced, most = request.content_length, most_bytes(context)
        if announced is not None and announced > most:
            raise _too_large(most, context)
        size = min(MOST_BYTES if announced is None else announced, MOST_BYTES)
        if self._held[rollout] + size > MOST_AT_ONCE:
            text = f"the bodies of this rollout's requests have more than {MOST_AT_ONCE:,} bytes"
            raise Refusal(f"{text} at once", 429, code="rate_limit_exceeded")
        self._held[rollout] += size
        try:
            raw = await request.read()
            self._held[rollout] += len(raw) - size
            size = len(raw)
            if size > most:
                raise _too_large(most, context)
            yield raw
        except web.HTTPRequestEntityTooLarge:
            raise _too_large(most, context) from None
        finally:
            self._held[rollout] -= size
            if not self._held[rollout]:
                del self._held[rollout]


def _too_large(most: int, context: int | None) -> Refusal:
    if context is None or most == MOST_BYTES:
        return Refusal(f"the body is larger than {most:,} bytes", 413)
    return Refusal(
        f"This model's maximum context length is {context} tokens, and a body of more than "
        f"{most:,} bytes cannot fit. Please reduce the length of the messages.",
        code=TOO_LONG,
        param="messages",
    )
