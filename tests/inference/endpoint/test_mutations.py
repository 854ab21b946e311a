"""Whatever an agent sends, it gets an answer or a clear error, and the rollout lives."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from typing import Any

import aiohttp
import pytest

from tests.inference.endpoint.bodies import BODIES
from tests.inference.endpoint.rollout_talk import CALL, Texts, opened, token_model
from vf.inference.endpoint.server import DIALECTS

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
            for _ in range(150):
                body = json.dumps(mutated(BODIES[path], rng)).encode()
                async with http.post(url, data=body, headers=key) as response:
                    answer = await response.read()
                statuses.add(response.status)
                assert response.status in (200, 400, 404), (body, answer)
                if response.status != 200:
                    assert json.loads(answer)["error"]["message"]
            assert "endpoint_faults" not in trace.info
            assert trace.from_json(trace.to_json()).turns == trace.turns
            last = await agent.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Tea?"}]
            )
            assert last.choices[0].message.content == "Yes."

    asyncio.run(run())
    assert {200, 400} <= statuses
