"""Wrong requests get the dialect's own error, and the rollout is none the worse for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

import vf
from tests.inference.chat_templates import watch_encoding
from tests.inference.endpoint.rollout_talk import TOOL, Texts, opened, token_model
from tests.waiting import until
from vf.inference.endpoint.chat import Chat
from vf.inference.endpoint.dialect import ModelRequest
from vf.inference.endpoint.request_bodies import MOST_AT_ONCE
from vf.inference.models import token_model as token_models
from vf.inference.rendering.next_prompt import next_prompt
from vf.inference.rendering.renderer import Renderer
from vf.inference.request_limits import MOST_BYTES, SMALL, most_bytes

USER = {"role": "user", "content": "Tea?"}
GOOD = {"model": "policy", "messages": [USER]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


async def post(
    url: str, body: Any, key: str, method: str = "POST", **headers: str
) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as http,
        http.request(
            method, url, data=raw, headers={"Authorization": f"Bearer {key}", **headers}
        ) as response,
    ):
        return response.status, await response.json()


class Waits:
    """A model that answers when it may.

    Attributes:
        go: Whether it may.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self._asked = asyncio.Semaphore(0)

    async def reached(self, count: int) -> None:
        """Wait until it has been asked so often."""
        for _ in range(count):
            await self._asked.acquire()

    async def respond(self, conversation: vf.Conversation, sampling: vf.Sampling) -> vf.Reply:
        self._asked.release()
        await self.go.wait()
        return vf.Reply(vf.Message("assistant", "Yes."))


def refused(body: Any, **settings: Any) -> tuple[int, dict[str, Any]]:
    """Send a body; make sure that a good one is answered afterwards."""

    async def run() -> tuple[int, dict[str, Any]]:
        async with opened(token_model(Texts(["Yes."])), **settings) as (session, _, trace):
            url = f"{session.endpoint.url}/chat/completions"
            status, answer = await post(url, body, session.endpoint.key)
            assert not trace.turns
            assert (await post(url, GOOD, session.endpoint.key))[0] == 200
            assert "endpoint_faults" not in trace.info
        error: dict[str, Any] = answer["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        return status, error

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Tea?"}, "messages"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0]"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "input_audio"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "Tea?"}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "green"}]}, "messages[0]"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "messages[0]"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"stream": "yes"}, "stream"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"logprobs": True}, "logprobs"),
        ({"temprature": 1}, "temprature"),
        ({"model": 1}, "model"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], param: str) -> None:
    status, error = refused(GOOD | change)
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)
    assert error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'"x"', b"[" * 100_000, b'{"a": NaN}', b"null"]
)
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    status, error = refused(body)
    assert status == 400
    assert "body" in error["message"]


def test_a_megabyte_is_refused_as_too_long_for_the_context_before_they_are_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = watch_encoding(monkeypatch)
    long = GOOD | {"messages": [{"role": "user", "content": "Tea, ünïcode. " * 40_000}]}
    status, error = refused(long)
    assert 0 < sum(encoded) < 100_000
    assert (status, error["code"]) == (400, "context_length_exceeded")


def test_more_bytes_than_the_context_can_need_are_not_read() -> None:
    status, error = refused(b" " * (most_bytes(4096) + 1))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "1,179,648 bytes" in error["message"]


def test_more_bytes_than_any_context_needs_are_not_read() -> None:
    async def run() -> None:
        async with opened(Waits()) as (session, _, _):
            url = f"{session.endpoint.url}/chat/completions"
            status, answer = await post(url, b" " * (MOST_BYTES + 1), session.endpoint.key)
            assert status == 413
            assert "8,388,608 bytes" in answer["error"]["message"]

    asyncio.run(run())


MANY: dict[str, Any] = {
    "messages": [USER] * 10_001,
    "messages[0].content": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 1001}],
    "messages[0].tool_calls": [{"role": "assistant", "tool_calls": [{}] * 1001}],
}


@pytest.mark.parametrize("field", [*MANY, "tools"])
def test_more_entries_than_any_agent_sends_are_refused_by_their_field(field: str) -> None:
    name = field.partition("[")[0]
    many = MANY.get(field, [TOOL] * 513)
    status, error = refused(GOOD | {name: many})
    assert (status, error["param"]) == (400, field)


def test_a_large_body_is_read_while_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = threading.Event()
    read = Chat.read

    def slow(chat: Chat, body: Mapping[str, Any], stored: Any) -> ModelRequest:
        if len(body.get("user", "")) > SMALL:
            assert honest.wait(60)
        return read(chat, body, stored)

    monkeypatch.setattr(Chat, "read", slow)

    async def run() -> None:
        model = token_model(Texts(["Yes."]))
        async with opened(model) as (large, _, _), opened(model) as (other, _, _):
            url = f"{large.endpoint.url}/chat/completions"
            body = GOOD | {"user": "x" * (SMALL + 1)}
            held = asyncio.create_task(post(url, body, large.endpoint.key))
            await until(large.reading.locked)
            url = f"{other.endpoint.url}/chat/completions"
            assert (await post(url, GOOD, other.endpoint.key))[0] == 200
            honest.set()
            assert (await held)[0] == 200

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/chat/completions", "/messages/count_tokens"])
def test_a_long_prompt_is_rendered_while_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    honest, begun = threading.Event(), threading.Event()
    render = next_prompt

    def slow(renderer: Renderer, conversation: vf.Conversation, *settings: Any) -> Any:
        if len(conversation.messages) > 1:
            begun.set()
            assert honest.wait(60)
        return render(renderer, conversation, *settings)

    monkeypatch.setattr(token_models, "next_prompt", slow)

    async def run() -> None:
        model = token_model(Texts(["Yes."]), max_seq_len=10**5)
        async with opened(model) as (large, _, _), opened(model) as (other, _, _):
            body = GOOD | {"messages": [USER] * 2000, "max_tokens": 1}
            held = asyncio.create_task(post(large.endpoint.url + path, body, large.endpoint.key))
            await until(begun.is_set)
            url = f"{other.endpoint.url}/chat/completions"
            assert (await post(url, GOOD, other.endpoint.key))[0] == 200
            honest.set()
            assert (await held)[0] == 200

    asyncio.run(run())


def test_a_rollouts_bodies_are_bounded_together() -> None:
    async def run() -> list[int]:
        model = Waits()
        async with opened(model) as (session, _, _):
            url = f"{session.endpoint.url}/chat/completions"
            body = json.dumps(GOOD | {"user": "x" * (MOST_BYTES - 200)}).encode()
            count = MOST_AT_ONCE // len(body)
            held = [
                asyncio.create_task(post(url, body, session.endpoint.key)) for _ in range(count)
            ]
            await model.reached(count)
            refused, error = await post(url, body, session.endpoint.key)
            assert error["error"]["code"] == "rate_limit_exceeded"
            model.go.set()
            statuses = [status for status, _ in await asyncio.gather(*held)]
            again, _ = await post(url, body, session.endpoint.key)
            return [refused, again, *statuses]

    assert asyncio.run(run()) == [429, 200, *[200] * 4]


def test_half_a_character_becomes_a_question_mark() -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."]))) as (session, _, trace):
            url = f"{session.endpoint.url}/chat/completions"
            body = b'{"model": "policy", "messages": [{"role": "user", "content": "a\\ud83d"}]}'
            assert (await post(url, body, session.endpoint.key))[0] == 200
        assert trace.messages[0].content == "a?"

    asyncio.run(run())


def test_another_model_does_not_exist_if_the_name_is_strict() -> None:
    status, error = refused(GOOD | {"model": "gpt-5"}, strict_model=True)
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


def test_the_model_answers_to_other_names_and_each_is_noted_once() -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."] * 5))) as (session, agent, trace):
            url = f"{session.endpoint.url}/chat/completions"
            for name in ("gpt-4o", "small", "gpt-4o", "policy", ""):
                assert (await post(url, GOOD | {"model": name}, session.endpoint.key))[0] == 200
            assert (await agent.models.retrieve("gpt-4o")).id == "gpt-4o"
            assert trace.info["asked"]["model"] == ["gpt-4o", "small", ""]
            assert len(trace.turns) == 5

    asyncio.run(run())


def test_fields_without_effect_are_accepted() -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."]))) as (session, _, trace):
            url = f"{session.endpoint.url}/chat/completions"
            extra = {
                "user": "me",
                "store": False,
                "metadata": {},
                "logprobs": False,
                "temperature": None,
                "stream_options": None,
                "modalities": ["text"],
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "Be "}]},
                    {"role": "user", "content": [{"type": "text", "text": "Tea?"}]},
                ],
            }
            status, _answer = await post(url, GOOD | extra, session.endpoint.key)
            assert status == 200
        assert [message.role for message in trace.messages] == ["system", "user", "assistant"]

    asyncio.run(run())


def test_keys_open_their_own_rollout_alone() -> None:
    async def run() -> None:
        model = token_model(Texts(["Yes."]))
        async with opened(model) as (one, _, _), opened(model) as (other, _, trace):
            url = f"{other.endpoint.url}/chat/completions"
            for key in ("", "none", one.endpoint.key, other.endpoint.reward_key, "\u20ac"):
                status, answer = await post(url, GOOD, key)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            status, _ = await post(url, GOOD, "", **{"x-api-key": other.endpoint.key})
            assert status == 200
            assert len(trace.turns) == 1

    asyncio.run(run())


def test_ended_and_unknown_rollouts_and_paths_have_their_own_status() -> None:
    async def run() -> None:
        model = token_model(Texts(["Yes."]))
        async with opened(model) as (open_one, _, _):
            async with opened(model) as (ended, _, _):
                pass
            url, key = open_one.endpoint.url, open_one.endpoint.key
            chat = "/chat/completions"
            assert (await post(ended.endpoint.url + chat, GOOD, ended.endpoint.key))[0] == 410
            unknown = url.replace("/r/", "/r/0") + chat
            assert (await post(unknown, GOOD, key))[0] == 404
            assert (await post(url + "/embeddings", GOOD, key))[0] == 404
            assert (await post(url.split("/r/")[0] + "/v1" + chat, GOOD, key))[0] == 404
            assert (await post(url + chat, b"", key, "GET"))[0] == 405

    asyncio.run(run())


def test_models_are_listed() -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."]))) as (_, agent, _trace):
            assert [card.id async for card in agent.models.list()] == ["policy"]
            assert (await agent.models.retrieve("policy")).id == "policy"

    asyncio.run(run())


def test_a_reward_is_bounded_reported_once_and_with_its_own_key() -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."]))) as (session, _, _):
            url, key = session.endpoint.reward_url, session.endpoint.reward_key
            assert (await post(url, {"reward": 0.5}, session.endpoint.key))[0] == 401
            for wrong in (1.5, -0.1, "1", None, True, float("nan")):
                assert (await post(url, {"reward": wrong}, key))[0] == 400
            assert session.reward is None
            assert (await post(url, {"reward": 0.5}, key))[0] == 200
            assert (await post(url, {"reward": 0.6}, key))[0] == 409
            assert session.reward == 0.5

    asyncio.run(run())


def test_what_an_agent_asks_for_fills_neither_the_trace_nor_an_error() -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."])), strict_model=True) as (session, _, trace):
            url = f"{session.endpoint.url}/chat/completions"
            large = {"response_format": {"type": "x" * 10**6}}
            assert (await post(url, GOOD | large, session.endpoint.key))[0] == 200
            assert len(str(trace.info)) < 30_000
            status, error = await post(url, GOOD | {"model": "x" * 10**6}, session.endpoint.key)
            assert status == 404
            assert len(str(error)) + len(session.refused) < 10_000

    asyncio.run(run())


def test_a_key_that_is_not_text_is_wrong_like_any_other() -> None:
    async def run() -> bytes:
        async with opened(token_model(Texts(["Yes."]))) as (session, _, _):
            host, _, port = session.endpoint.root.split("/")[2].partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            path = session.endpoint.url.split("/", 3)[3]
            writer.write(f"POST /{path}/chat/completions HTTP/1.1\r\nHost: x\r\n".encode())
            writer.write(b"Authorization: Bearer \xff\r\nContent-Length: 2\r\n\r\n{}")
            answer = await reader.readline()
            writer.close()
            return answer

    assert b" 401 " in asyncio.run(run())
