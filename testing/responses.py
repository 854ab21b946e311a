"""The requests and responses of a fake server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vf.traces.messages import Message


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a fake server received.

    Attributes:
        method: ``GET``, ``POST`` and so on.
        path: The path, without the query.
        query: The parameters of the query.
        headers: The headers, which are found in any case: ``headers["authorization"]``.
        body: The JSON of the body, or its text if that is not JSON; None if it is empty.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Response:
    """A response of a fake server.

    Args:
        body: A text or a :class:`~vf.traces.messages.Message` is the model's reply, with a
            ``status`` of 400 or more an error's message. Bytes are sent as they are, and everything
            else as JSON.
        status: The HTTP status.
        headers: More headers.
        after: The event to wait for first: of asyncio, or of threading for a server in a thread.
            One that is never set makes a server that never answers.
    """

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] | None = None
    after: asyncio.Event | threading.Event | None = None

    def content(self, model: str) -> bytes:
        """Return the bytes to send, as those of a model of this name."""
        body = self.body
        if isinstance(body, bytes):
            return body
        if isinstance(body, str) and self.status >= 400:
            body = {"error": {"message": body, "type": "fake", "code": self.status}}
        elif isinstance(body, str | Message):
            body = _reply(body, model)
        return json.dumps(body).encode()


def chat_completion(
    content: str | None,
    finish_reason: str | None = None,
    usage: tuple[int, int] = (20, 5),
    **message: Any,
) -> Response:
    """Return a chat completion, for more of it than its text.

    Args:
        content: The text.
        finish_reason: By default ``tool_calls`` if there are any, else ``stop``.
        usage: The number of tokens in and out.
        **message: More fields of the message, such as ``tool_calls`` or ``reasoning_content``.
    """
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish_reason or ("tool_calls" if message.get("tool_calls") else "stop"),
    }
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    head = {"id": "x", "object": "chat.completion", "created": 0, "model": "fake"}
    return Response({**head, "choices": [choice], "usage": counts})


def completion(
    ids: Sequence[int], finish_reason: str | None = "stop", version: int = 0, **changes: Any
) -> Response:
    """Return a completion as vLLM and the embedded engine give it to a ``TokenModel``.

    Args:
        ids: The sampled token ids.
        finish_reason: ``stop`` or ``length``.
        version: The version of the weights that sampled them.
        **changes: Other fields of the choice, or other values of them. ``logprobs`` are -0.5 for
            the first token, -1.5 for the second and so on, unless this changes them.
    """
    choice = {
        "index": 0,
        "text": "ignored",
        "token_ids": list(ids),
        "logprobs": {"token_logprobs": [-0.5 - index for index in range(len(ids))]},
        "weight_versions": [version] * len(ids),
        "finish_reason": finish_reason,
    }
    return Response({"choices": [choice | changes]})


def _reply(line: str | Message, model: str) -> dict[str, Any]:
    message = (Message("assistant", line) if isinstance(line, str) else line).to_openai()
    del message["role"]
    content = message.pop("content") or (None if message.get("tool_calls") else "")
    body: dict[str, Any] = chat_completion(content, **message).body
    return body | {"model": model}
