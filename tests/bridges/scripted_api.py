"""An OpenAI-compatible server on this machine that says what a script says, one line a call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import web

from tests.inference.local_server import LocalServer, chat_completion, json_answer, serve
from vf.inference.models.scripted_model import Line, as_reply


def scripted_api(script: Sequence[Line]) -> AbstractAsyncContextManager[LocalServer]:
    """Serve a script while the block runs; the server fails where it ends."""
    lines = enumerate(script)

    def answer(body: dict[str, Any]) -> web.Response:
        turn, line = next(lines)
        message = as_reply(line, turn).to_openai()
        del message["role"]
        message["content"] = message["content"] or (None if message.get("tool_calls") else "")
        return json_answer(chat_completion(**message) | {"model": body["model"]})

    return serve(answer)
