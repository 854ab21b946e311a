"""The wire: what is tried again, what is final, and what the error says."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError
from vf.testing import FakeServer, Response
from vf.testing.fake_server import Script

OK = {"fine": True}


def post(answer: Script, **settings: Any) -> tuple[Any, int]:
    """Post once; return the answer (or the error) and how many requests the server saw."""

    async def run() -> tuple[Any, int]:
        async with FakeServer(answer) as server:
            client = JsonClient(server.base_url, **{"backoff": 0.01} | settings)
            try:
                return await client.post("/completions", {"prompt": [1]}), len(server.bodies)
            except ModelError as error:
                return error, len(server.bodies)
            finally:
                await client.close()

    return asyncio.run(run())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_passing_failures_are_tried_again(status: int) -> None:
    script = [Response("busy", status), Response("busy", status), Response(OK)]
    assert post(script) == (OK, 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_refusals_are_final_at_once(status: int) -> None:
    error, requests = post([Response("no such thing", status), Response(OK)])
    assert isinstance(error, ModelError)
    assert f"answered {status}: no such thing" in str(error)
    assert requests == 1


def test_the_last_failure_is_reported_with_the_number_of_attempts() -> None:
    error, requests = post(Response("still loading", 503), max_retries=2)
    assert "answered 503: still loading" in str(error)
    assert "after 3 attempts" in str(error)
    assert requests == 3


def test_a_reset_connection_is_tried_again() -> None:
    assert post([ConnectionResetError(), ConnectionResetError(), Response(OK)]) == (OK, 3)


def test_a_refused_connection_is_tried_again_until_the_server_is_up() -> None:
    async def run() -> dict[str, Any]:
        port = free_port()
        client = JsonClient(f"http://127.0.0.1:{port}/v1", backoff=0.1, max_retries=8)

        posting = asyncio.create_task(client.post("/x", {}))
        done, _ = await asyncio.wait([posting], timeout=0.15)
        assert not done
        async with FakeServer(Response(OK), port=port):
            try:
                return await posting
            finally:
                await client.close()

    assert asyncio.run(run()) == OK


def test_nobody_listening_is_a_model_error() -> None:
    async def run() -> None:
        client = JsonClient(f"http://127.0.0.1:{free_port()}/v1", backoff=0.01, max_retries=2)
        try:
            await client.post("/x", {})
        finally:
            await client.close()

    with pytest.raises(ModelError, match=r"ClientConnectorError.*after 3 attempts"):
        asyncio.run(run())


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    error, requests = post(Response(after=asyncio.Event()), timeout=0.2, max_retries=1)
    assert "did not answer within 0.2 s" in str(error)
    assert requests == 2


NOT_JSON = ["<html>hello</html>", "", "{", "[" * 100_000, "\udcff", '{"text": "\\ud800"}']


@pytest.mark.parametrize("text", NOT_JSON)
def test_an_answer_that_is_not_json_is_final(text: str) -> None:
    body = text.encode("utf-8", "surrogateescape")
    error, requests = post(Response(body))
    assert isinstance(error, ModelError)
    assert "did not answer with JSON" in str(error)
    assert requests == 1


def test_numbers_and_texts_arrive_as_they_were_sent() -> None:
    sent = {"ids": [0, 151_935, 2**63, -1], "logprobs": [-1e-300, 0.1, -0.0], "text": "é\u2028🙂"}

    async def run() -> Any:
        async with FakeServer(lambda request: Response(request.body)) as server:
            client = JsonClient(server.base_url)
            try:
                return [await client.post("/x", sent), *server.bodies]
            finally:
                await client.close()

    assert repr(asyncio.run(run())) == repr([sent, sent])


def test_json_that_is_not_an_object_is_refused() -> None:
    error, _ = post(Response([1]))
    assert isinstance(error, ModelError)
    assert "not an object" in str(error)


@pytest.mark.parametrize(
    "body", ['{"detail": "bad"}', "plainly bad", '{"error": "bad"}', '["bad"]', "null bad"]
)
def test_other_error_bodies_are_shown_as_they_are(body: str) -> None:
    error, _ = post(Response(body.encode(), 400))
    assert body in str(error)


def test_a_base_url_without_scheme_is_explained() -> None:
    async def run() -> None:
        client = JsonClient("127.0.0.1:1/v1", backoff=0.01)
        try:
            await client.post("/x", {})
        finally:
            await client.close()

    with pytest.raises(ModelError, match="is not a URL"):
        asyncio.run(run())


def test_the_key_is_sent_as_a_bearer_token() -> None:
    async def run() -> str:
        async with FakeServer(Response(OK)) as server:
            client = JsonClient(f"{server.base_url}/", api_key="sesame")
            await client.post("/x", {})
            await client.close()
        return server.requests[0].headers["Authorization"]

    assert asyncio.run(run()) == "Bearer sesame"
