"""A server that a test steers, and a patient client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.inference.local_server import completion
from vf.inference.serving import Serving
from vf.inference.token_client import TokenClient

TIMEOUT = 10.0  # seconds, which only jumps of the clock make pass
PROMPT_TOKENS = 9.0


class Server:
    """A server that a test steers.

    Attributes:
        answer: Called with the number of each request, from 1; what it returns is answered.
        tokens: What ``/metrics`` counts; None for a server without.
        requests: How many came.
        gone: Set when a client has gone away before its answer.
    """

    def __init__(self) -> None:
        self.answer: Callable[[int], Awaitable[web.Response]] = self.at_once
        self.tokens: float | None = None
        self.requests = 0
        self.gone = asyncio.Event()
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def processed(self) -> float:
        """What ``/metrics`` adds up to."""
        return PROMPT_TOKENS + (self.tokens or 0.0)

    async def at_once(self, number: int) -> web.Response:
        return completion([5, 6])

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self._post)
        app.router.add_post("/v1/chat/completions", self._post)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _post(self, request: web.Request) -> web.Response:
        await request.read()
        self.requests += 1
        try:
            return await self.answer(self.requests)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.tokens is None:
            return web.Response(status=404)
        labels = '{engine="0",model_name="m"}'
        return web.Response(
            text="# TYPE vllm:generation_tokens_total counter\n"
            f"vllm:generation_tokens_total{labels} {self.tokens}\n"
            f"vllm:prompt_tokens_total{labels} {PROMPT_TOKENS}\n"
            f"vllm:num_requests_running{labels} 1.0\n"
        )


@asynccontextmanager
async def serving(
    served: Serving | None = None, **settings: Any
) -> AsyncIterator[tuple[Server, TokenClient]]:
    """Run a server, and a client of it."""
    server = Server()
    await server.start()
    away = settings.pop("away", 60.0)
    settings = {"timeout": TIMEOUT, "backoff": 0.01} | settings
    client = TokenClient.to(server.url, served or Serving("m"), away=away, **settings)
    try:
        yield server, client
    finally:
        await client.close()
        await server.stop()


async def forever(number: int) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError
