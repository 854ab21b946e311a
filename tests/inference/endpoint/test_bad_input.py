"""Bad input of every kind gets the error of its own dialect, and never ends the rollout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.inference.endpoint.bodies import BODIES, IMAGES, with_part
from tests.inference.endpoint.rollout_talk import CALL, Texts, opened, token_model
from tests.inference.endpoint.test_refusals import GOOD, Waits, post, refused
from vf.inference.endpoint import session as sessions
from vf.inference.endpoint.session import Session

PATHS = sorted(BODIES)


@dataclass
class Agent:
    """Posts to one path of a rollout."""

    http: aiohttp.ClientSession
    path: str

    async def post(
        self, session: Session, body: Any, key: str | None = None, rollout: str | None = None
    ) -> tuple[int, Any]:
        endpoint = session.endpoint
        root = endpoint.root if rollout is None else f"{endpoint.root.rpartition('/')[0]}/{rollout}"
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {endpoint.key if key is None else key}"}
        async with self.http.post(root + self.path, data=raw, headers=headers) as response:
            if response.content_type == "text/event-stream":
                return response.status, await response.text()
            return response.status, await response.json()

    def error(self, answer: Any) -> Mapping[str, Any]:
        """Return the error, if it has the form of the dialect."""
        error: Mapping[str, Any] = answer["error"]
        if self.path == "/v1/messages":
            assert answer["type"] == "error"
            assert {"type", "message"} <= error.keys()
        else:
            assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        return error


@pytest.mark.parametrize("path", PATHS)
def test_bad_input_gets_the_dialects_own_error(path: str) -> None:
    good = BODIES[path]

    async def run() -> None:
        model = token_model(Texts([CALL, "Yes."]), max_seq_len=20_000)
        async with (
            aiohttp.ClientSession() as http,
            opened(model, strict_model=True) as (session, _, trace),
            opened(model) as (other, _, _trace),
        ):
            async with opened(model) as (ended, _, _ended):
                pass
            agent = Agent(http, path)
            long = {"type": "input_text" if path == "/v1/responses" else "text", "text": ""}
            bad: list[tuple[int, Any]] = [
                (400, b"{"),
                (400, b"[]"),
                (400, b"\xff\xfe"),
                (400, {}),
                (400, good | {"no_such_field": 1}),
                (400, good | {"temperature": "hot"}),
                (400, good | {"temperature": 1e-300}),
                (400, with_part(path, IMAGES[path])),
                (400, with_part(path, long | {"text": "Tea and much more. " * 550_000})),
                (404, good | {"model": "gpt-5"}),
            ]
            for status, body in bad:
                found, answer = await agent.post(session, body)
                assert (found, bool(agent.error(answer))) == (status, True), answer
            for status, key, rollout in [
                (401, "wrong", None),
                (401, "", None),
                (401, other.endpoint.key, None),
                (401, session.endpoint.reward_key, None),
                (404, None, "nobodys"),
                (410, None, ended.endpoint.root.rpartition("/")[2]),
            ]:
                found, answer = await agent.post(session, good, key, rollout)
                assert (found, bool(agent.error(answer))) == (status, True), answer
            assert trace.turns == []
            for _ in range(2):  # the same request again is a wish for another answer
                assert (await agent.post(session, good))[0] == 200
            assert "endpoint_faults" not in trace.info
        assert len(trace.turns) == 2 * good.get("n", 1)

    asyncio.run(run())


def test_requests_of_one_rollout_take_turns_and_others_do_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MOST_REQUESTS", 3)

    async def ask(session: Session) -> int:
        url = f"{session.endpoint.url}/chat/completions"
        return (await post(url, GOOD, session.endpoint.key))[0]

    async def run() -> tuple[int, list[int]]:
        many, one = Waits(), token_model(Texts(["Yes."]))
        async with opened(many) as (session, _, _), opened(one) as (other, _, _):
            asking = [asyncio.create_task(ask(session)) for _ in range(9)]
            await many.reached(3)
            assert [await ask(other) for _ in range(3)] == [200] * 3
            at_once = session.in_flight
            many.go.set()
            return at_once, await asyncio.gather(*asking)

    assert asyncio.run(run()) == (3, [200] * 9)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({f"field{number}": 1 for number in range(2000)}, "the body has 2,002 entries"),
        ({"stop": [1] * 2000}, "stop has 2,000 entries"),
        ({"logit_bias": {str(number): "a" for number in range(2000)}}, "logit_bias has 2,000"),
    ],
)
def test_very_many_mistakes_are_refused_as_one(wrong: dict[str, Any], said: str) -> None:
    status, error = refused(GOOD | wrong)
    assert (status, error["message"].startswith(said)) == (400, True), error
