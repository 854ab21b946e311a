"""Whatever an agent sends, it gets an answer or is told what is wrong, and the rollout lives."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from typing import Any

import aiohttp
import pytest

from tests.inference.endpoint.rollout_talk import CALL, TOOL, Texts, opened, token_model
from vf.inference.endpoint.server import DIALECTS

CALLED = {
    "id": "call_0_0",
    "type": "function",
    "function": {"name": "look", "arguments": '{"what": "tea"}'},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "policy",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Tea?"},
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "call_0_0", "content": "green"},
        ],
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 2,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "max_completion_tokens": 9,
        "response_format": {"type": "text"},
        "metadata": {"a": "b"},
        "user": "me",
    },
    "/v1/responses": {
        "model": "policy",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Tea?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_0_0",
                "name": "look",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "call_0_0", "output": "green"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Green.", "annotations": []}],
            },
            {"role": "user", "content": "More."},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stream": True,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "model": "policy",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Tea?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "call_0_0", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_0_0",
                        "content": [{"type": "text", "text": "green"}],
                    },
                    {"type": "text", "text": "More."},
                ],
            },
        ],
        "tools": [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stream": True,
        "max_tokens": 9,
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "me"},
    },
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**40, 10**30, 0.5, -1e300),
    *("", "x", "\ud83d", "\x00", "assistant", "tool", "{", [], [None], {}, {"type": "text"}),
    *([[]], {"role": "user"}, {"type": "image_url"}, {"id": 1}, {"": None}),
]


def mutated(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a body with one to three places changed, removed or added."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(body))
        holder, key = rng.choice(places)
        match rng.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(rng.choice(VALUES)))
            case 1:
                holder[rng.choice(["x", "content", "type", "id"])] = rng.choice(VALUES)
            case 2:
                holder[key] = copy.deepcopy(rng.choice(places)[0])
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
        if not body:
            break
    return body


def _places(value: Any) -> Any:
    """Yield every place in a JSON value, as what holds it and the key or index there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@pytest.mark.parametrize("path", sorted(DIALECTS))
def test_mutated_requests_are_answered_or_refused(path: str) -> None:
    rng = random.Random(path)
    statuses = set()

    async def run() -> None:
        model = token_model(Texts([CALL, "Yes."]), max_seq_len=100_000)
        async with (
            opened(model, max_turns=10_000) as (session, agent, trace),
            aiohttp.ClientSession() as http,
        ):
            url = session.endpoint.url.removesuffix("/v1") + path
            key = {"Authorization": f"Bearer {session.endpoint.key}"}
            for _ in range(400):
                body = json.dumps(mutated(BODIES[path], rng)).encode()
                async with http.post(url, data=body, headers=key) as response:
                    answer = await response.read()
                statuses.add(response.status)
                assert response.status in (200, 400, 404), (body, answer)
                if response.status != 200:
                    assert json.loads(answer)["error"]["message"]
            assert "endpoint_faults" not in trace.info
            assert trace.from_json(trace.to_json()).turns == trace.turns
            answer = await agent.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Tea?"}]
            )
            assert answer.choices[0].message.content == "Yes."

    asyncio.run(run())
    assert {200, 400} <= statuses
