"""A server that a test steers, and a patient client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from vf.inference.serving import Serving
from vf.inference.token_client import TokenClient
from vf.testing import FakeServer, Request, Response, completion

TIMEOUT = 10.0  # seconds, which only jumps of the clock make pass
PROMPT_TOKENS = 9.0


class Server:
    """A server that a test steers.

    Attributes:
        answer: The answer to every request, or called with the number of each, from 1.
        tokens: What ``/metrics`` counts; None for a server without.
        requests: How many came.
        gone: Set when a client has gone away before its answer.
        http: The server itself.
    """

    def __init__(self) -> None:
        self.answer: Response | Callable[[int], Awaitable[Response]] = completion([5, 6])
        self.tokens: float | None = None
        self.requests = 0
        self.gone = asyncio.Event()
        self.http = FakeServer(self._respond)

    @property
    def processed(self) -> float:
        """What ``/metrics`` adds up to."""
        return PROMPT_TOKENS + (self.tokens or 0.0)

    async def _respond(self, request: Request) -> Response:
        if request.path == "/metrics":
            return self._metrics()
        self.requests += 1
        if isinstance(self.answer, Response):
            return self.answer
        try:
            return await self.answer(self.requests)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    def _metrics(self) -> Response:
        if self.tokens is None:
            return Response(status=404)
        labels = '{engine="0",model_name="m"}'
        text = (
            "# TYPE vllm:generation_tokens_total counter\n"
            f"vllm:generation_tokens_total{labels} {self.tokens}\n"
            f"vllm:prompt_tokens_total{labels} {PROMPT_TOKENS}\n"
            f"vllm:num_requests_running{labels} 1.0\n"
        )
        return Response(text.encode(), headers={"Content-Type": "text/plain"})


@asynccontextmanager
async def serving(
    served: Serving | None = None, **settings: Any
) -> AsyncIterator[tuple[Server, TokenClient]]:
    """Run a server, and a client of it."""
    server = Server()
    away = settings.pop("away", 60.0)
    settings = {"timeout": TIMEOUT, "backoff": 0.01} | settings
    async with server.http:
        url = server.http.base_url
        client = TokenClient.to(url, served or Serving("m"), away=away, **settings)
        try:
            yield server, client
        finally:
            await client.close()


async def forever(number: int) -> Response:
    await asyncio.Event().wait()
    raise AssertionError
