"""An OpenAI-compatible server on this machine that says what a script says, one line a call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from vf.inference.models.scripted_model import Line, as_reply


class Api:
    """The server: its address, and what it was asked."""

    def __init__(self, script: Sequence[Line]) -> None:
        self._script = list(script)
        self.url = ""
        self.requests: list[Mapping[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        turn = len(self.requests)
        self.requests.append(body)
        message = as_reply(self._script[turn], turn).to_openai()
        calls = message.get("tool_calls")
        message["content"] = message["content"] or (None if calls else "")
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls else "stop",
        }
        reply = {
            "id": f"chatcmpl-{turn}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        return web.Response(body=json.dumps(reply), content_type="application/json")


@asynccontextmanager
async def scripted_api(script: Sequence[Line]) -> AsyncIterator[Api]:
    """Serve a script while the block runs."""
    api = Api(script)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", api.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        api.url = f"http://127.0.0.1:{port}/v1"
        yield api
    finally:
        await runner.cleanup()
