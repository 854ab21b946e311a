"""A real HTTP server on 127.0.0.1 that answers what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Handler = Callable[[dict[str, Any]], web.Response]


@dataclass
class LocalServer:
    """Where it listens, and every request body that it got."""

    base_url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def serve(
    answer: Handler, delay: float | Callable[[dict[str, Any]], float] = 0.0
) -> AsyncIterator[LocalServer]:
    """Answer every POST with ``answer(body)``, after ``delay`` seconds or those of the body."""
    server = LocalServer()

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        server.bodies.append(body)
        await asyncio.sleep(delay(body) if callable(delay) else delay)
        return answer(body)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        await runner.cleanup()


def in_turn(answers: Iterable[web.Response]) -> Handler:
    """Give the answers one after the other."""
    script = iter(answers)
    return lambda body: next(script)


def json_answer(body: Any, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    return web.Response(text=json.dumps(body), status=status, content_type="application/json")


def error_answer(status: int, message: str) -> web.Response:
    """Return an error as OpenAI words it."""
    return json_answer({"error": {"message": message, "type": "x", "code": status}}, status)


def completion(
    ids: list[int], finish_reason: str | None = "stop", version: int = 0, **changes: Any
) -> web.Response:
    """Return a completion of these ids, with a logprob for each that tells its place."""
    choice = {
        "index": 0,
        "text": "ignored",
        "token_ids": ids,
        "logprobs": {"token_logprobs": [-0.5 - place for place in range(len(ids))]},
        "weight_versions": [version] * len(ids),
        "finish_reason": finish_reason,
    }
    return json_answer({"choices": [choice | changes]})
