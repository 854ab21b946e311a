"""What the embedded server refuses, so that no request stops it for the others."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from tests.inference.chat_templates import watch_encoding
from tests.inference.tiny_serving import TOOL, load_model, running_engine, running_server
from vf.inference.request_limits import most_bytes

ASK = [{"role": "user", "content": "Compute 3 + 4."}]
JSON_TYPE = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_engine(load_model()) as engine, running_server(engine) as base_url:
        yield base_url


def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as reply:
            return reply.status, await reply.json()

    return asyncio.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-39},
        {"temperature": 1e-300},
        {"temperature": 1e300},
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": 1e39},
        {"top_k": 2**63},
        {"top_k": 2**200},
        {"seed": 10**400},
    ],
    ids=str,
)
def test_parameters_that_no_sampler_can_compute_are_refused_by_name(
    url: str, fields: dict[str, Any]
) -> None:
    good = {"model": "tiny", "prompt": "hi", "max_tokens": 1}
    status, answer = post(url, "/completions", good | fields)
    assert status == 400
    assert answer["error"]["message"].startswith(next(iter(fields)))
    assert post(url, "/completions", good)[0] == 200


PAGES: dict[str, tuple[int, dict[str, str]]] = {
    "a form": (415, {"Content-Type": "text/plain"}),
    "another site": (403, JSON_TYPE | {"Origin": "https://evil.example"}),
    "a sandboxed frame": (403, JSON_TYPE | {"Origin": "null"}),
    "a name that leads here": (403, JSON_TYPE | {"Host": "evil.example:8000"}),
    "a name like ours": (403, JSON_TYPE | {"Host": "127.0.0.1.evil.example"}),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_web_page_cannot_use_the_server(url: str, page: str) -> None:
    status, headers = PAGES[page]
    body = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 1})

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/completions", data=body, headers=headers) as reply:
                assert reply.status == status
                assert (await reply.json())["error"]["message"]
            local = JSON_TYPE | {"Host": "localhost:1"}
            async with session.post(f"{url}/completions", data=body, headers=local) as reply:
                assert reply.status == 200

    asyncio.run(main())


def test_a_body_beyond_what_the_context_can_need_is_refused(url: str) -> None:
    status, answer = post(url, "/completions", {"prompt": "x" * most_bytes(512)})
    assert status == 413
    assert f"{most_bytes(512):,} bytes" in answer["error"]["message"]


def test_an_endless_body_is_not_read(url: str) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 2**20
            yield b" " * 2**20

    async def main() -> None:
        async with aiohttp.ClientSession(headers=JSON_TYPE) as session:
            with suppress(aiohttp.ClientError):  # the server closes the connection
                async with session.post(f"{url}/completions", data=endless()) as reply:
                    assert reply.status == 413

    asyncio.run(main())
    assert sent < 100 * most_bytes(512)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/chat/completions", {"messages": ASK * 10_001}, "messages"),
        ("/chat/completions", {"messages": ASK, "tools": [TOOL] * 513}, "tools"),
        ("/chat/completions", {"messages": ASK, "tools": [{}]}, "tools.0.function.name:"),
        ("/completions", {"prompt": "hi", "stop": ["a"] * 17}, "stop"),
        ("/completions", {"prompt": "hi", "stop": ""}, "stop: "),
        ("/completions", {"prompt": "hi", "stop_token_ids": [1] * 257}, "stop_token_ids"),
    ],
)
def test_more_entries_than_any_client_sends_are_refused_by_their_field(
    url: str, path: str, body: dict[str, Any], field: str
) -> None:
    status, answer = post(url, path, {"model": "tiny", **body})
    assert status == 400
    assert answer["error"]["message"].startswith(field)


LONG: dict[str, dict[str, Any]] = {
    "one message": {"messages": [{"role": "user", "content": "Tea and cake. " * 70_000}]},
    "many messages": {"messages": ASK * 9_999},
    "tools": {"messages": ASK, "tools": [TOOL] * 512},
}


@pytest.mark.parametrize("what", LONG)
def test_a_prompt_many_times_longer_than_the_context_is_not_tokenized(
    url: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    encoded = watch_encoding(monkeypatch)
    status, answer = post(url, "/chat/completions", {"model": "tiny", **LONG[what]})
    assert status == 400
    assert "maximum context length is 512" in answer["error"]["message"]
    assert 0 < sum(encoded) < 100_000


def test_a_body_of_mistakes_is_refused_in_a_few_words(url: str) -> None:
    wrong = {f"field{index}": 1 for index in range(50_000)}
    status, answer = post(url, "/completions", {"model": "tiny", "prompt": "hi", **wrong})
    assert status == 400
    assert answer["error"]["message"] == "body: 50,000 fields are unknown or have wrong values"


def test_no_collection_looks_through_the_objects_that_were_loaded(url: str) -> None:
    assert gc.get_freeze_count() > 10_000
