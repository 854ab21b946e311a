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
async def listening(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on a port of this machine; yields its address."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


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
    async with listening(app) as address:
        server.base_url = f"{address}/v1"
        yield server


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


def chat_completion(
    content: str | None,
    finish_reason: str | None = None,
    usage: tuple[int, int] = (20, 5),
    **message: Any,
) -> dict[str, Any]:
    """Return the body of a chat completion; ``usage`` counts tokens in and out."""
    ended = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish_reason or ended,
    }
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    head = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    return {**head, "choices": [choice], "usage": counts}


def tool_call(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    """Return a tool call as a chat completion has it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


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
