"""Images of tool results as chat APIs take them: in a user's message behind the results.

The messages of tools hold text only in OpenAI's API, and in most that copy it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vf.traces.messages import Message


def images_behind(
    messages: Sequence[Message], sent: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a request's messages, in which no message of a tool holds an image.

    Args:
        messages: The conversation.
        sent: The same, each as the API gets it.
    """
    out: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []  # parts of the user's message that follows the results
    for message, raw in zip(messages, sent, strict=True):
        if message.role == "tool":
            if message.images:
                caption = f"Shown by {message.name or 'the tool'} (call {message.tool_call_id}):"
                waiting.append({"type": "text", "text": caption})
                waiting += [image.to_openai() for image in message.images]
                raw = {**raw, "content": message.content or "(an image, shown below)"}
        elif waiting and message.role == "user":
            content = raw["content"]
            own = [{"type": "text", "text": content}] if isinstance(content, str) else content
            raw, waiting = {**raw, "content": [*waiting, *own]}, []
        elif waiting:
            out.append({"role": "user", "content": waiting})
            waiting = []
        out.append(raw)
    return [*out, {"role": "user", "content": waiting}] if waiting else out
