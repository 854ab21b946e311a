"""One small agent for each dialect, on the official client, that keeps what it was sent."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest

from tests.inference.endpoint.rollout_talk import TOOL
from vf.inference.endpoint.session import Session

LOOK: Any = TOOL["function"]
KINDS = ("responses", "previous_response_id", "anthropic")


class Responding:
    """Speaks Responses; sends back all items, or only the id of what it continues."""

    def __init__(
        self, session: Session, stream: bool, inherit: bool = False, key: str = ""
    ) -> None:
        self.client = openai.AsyncOpenAI(
            base_url=session.endpoint.url, api_key=key or session.endpoint.key, max_retries=0
        )
        self.stream, self.inherit = stream, inherit
        self.new: list[Any] = []
        self.previous: str | None = None

    async def say(self, text: str, results: tuple[tuple[str, str], ...] = (), **fields: Any) -> Any:
        """Send results of calls and, if there is one, a text; return text and ids of calls."""
        self.new += [
            {"type": "function_call_output", "call_id": call, "output": output}
            for call, output in results
        ]
        if text:
            self.new.append({"role": "user", "content": text})
        if self.previous:
            fields["previous_response_id"] = self.previous
        create: Any = self.client.responses.create
        options = {
            "model": "policy",
            "instructions": "Be brief.",
            "input": self.new,
            "tools": [{"type": "function", **LOOK}],
            "reasoning": {"summary": "auto"},
        }
        response = await create(**options | fields, stream=self.stream)
        if self.stream:
            events = [event async for event in response]
            response = events[-1].response
        if self.inherit:
            self.new, self.previous = [], response.id
        else:
            self.new += response.output
        calls = [item.call_id for item in response.output if item.type == "function_call"]
        return response.output_text, calls

    async def forget(self) -> None:
        """Begin again."""
        self.new, self.previous = [], None


class Messaging:
    """Speaks Anthropic's Messages."""

    def __init__(
        self, session: Session, stream: bool, inherit: bool = False, key: str = ""
    ) -> None:
        anthropic = pytest.importorskip("anthropic")
        self.client = anthropic.AsyncAnthropic(
            base_url=session.endpoint.root, api_key=key or session.endpoint.key, max_retries=0
        )
        self.stream = stream
        self.messages: list[Any] = []

    async def say(self, text: str, results: tuple[tuple[str, str], ...] = (), **fields: Any) -> Any:
        """Send results of calls and, if there is one, a text; return text and ids of calls."""
        content: list[Any] = [
            {"type": "tool_result", "tool_use_id": call, "content": output}
            for call, output in results
        ]
        if text:
            content.append({"type": "text", "text": text})
        self.messages.append({"role": "user", "content": content})
        options = {
            "model": "policy",
            "max_tokens": 64,
            "system": "Be brief.",
            "messages": self.messages,
            "tools": [
                {
                    "name": LOOK["name"],
                    "description": LOOK["description"],
                    "input_schema": LOOK["parameters"],
                }
            ],
            "thinking": {"type": "adaptive"},
        }
        options |= fields
        if self.stream:
            async with self.client.messages.stream(**options) as stream:
                message = await stream.get_final_message()
        else:
            message = await self.client.messages.create(**options)
        self.messages.append({"role": "assistant", "content": message.content})
        calls = [block.id for block in message.content if block.type == "tool_use"]
        return "".join(block.text for block in message.content if block.type == "text"), calls

    async def forget(self) -> None:
        """Begin again."""
        self.messages = []


async def agent_of(
    kind: str, session: Session, stack: AsyncExitStack, *, stream: bool = False, key: str = ""
) -> Any:
    """Return an agent; its client is closed with the stack."""
    made = Messaging if kind == "anthropic" else Responding
    agent = made(session, stream, kind == "previous_response_id", key)
    await stack.enter_async_context(agent.client)
    return agent
