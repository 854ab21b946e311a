"""Holding a conversation of a TokenModel with a server that says what the test chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vf.inference.model import Conversation, Reply, Sampling
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.testing import FakeServer, completion
from vf.traces.messages import Message


@dataclass
class Turn:
    """What the server samples, and what the environment says to it.

    Without ``texts`` it is a last turn; each text answers one tool call, or is a user's.
    """

    ids: list[int]
    texts: list[str] = field(default_factory=list)
    finish_reason: str = "stop"


@dataclass
class Talk:
    """What came of it."""

    conversation: Conversation
    prompts: list[list[int]]
    replies: list[Reply]
    bodies: list[dict[str, Any]]


async def talk(
    renderer: Renderer,
    first: Sequence[Message],
    turns: Sequence[Turn],
    *,
    tools: Sequence[dict[str, Any]] = (),
    max_seq_len: int = 1_000_000,
    sampling: Sampling | None = None,
) -> Talk:
    """Let the turns happen one after the other, as the runner would."""
    conversation = Conversation(list(first), list(tools))
    replies: list[Reply] = []
    script = [completion(t.ids, t.finish_reason, version=k) for k, t in enumerate(turns)]
    async with FakeServer(script) as server:
        client = TokenClient.to(server.base_url, "tiny", max_retries=0)
        model = TokenModel(client, renderer, max_seq_len=max_seq_len)
        try:
            for turn in turns:
                reply = await model.respond(conversation, sampling or Sampling())
                replies.append(reply)
                conversation.messages.append(reply.message)
                conversation.turn += 1
                conversation.messages += answers(reply.message, turn.texts)
        finally:
            await client.close()
    prompts = [body["prompt"] for body in server.bodies]
    return Talk(conversation, prompts, replies, server.bodies)


def answers(reply: Message, texts: Sequence[str]) -> list[Message]:
    """Return a tool message for every call, or the texts as a user's messages."""
    if not texts or not reply.tool_calls:
        return [Message("user", text) for text in texts]
    return [
        Message("tool", texts[k % len(texts)], tool_call_id=call.id, name=call.name)
        for k, call in enumerate(reply.tool_calls)
    ]
