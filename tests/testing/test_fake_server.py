"""The fake server: what it answers, what it records, and what it says of a script that fails."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

import vf
from vf.testing import FakeServer, Request, Response
from vf.testing.fake_server import Script


def client(server: FakeServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0)


def ask(server: FakeServer, text: str = "Hi") -> str | None:
    api = client(server)
    messages: list[openai.types.chat.ChatCompletionMessageParam]
    messages = [{"role": "user", "content": text}]
    return api.chat.completions.create(model="m", messages=messages).choices[0].message.content


def test_a_script_is_played_line_by_line_to_a_rollout() -> None:
    busy = Response("busy", status=503, headers={"Retry-After": "0"})
    script: Script = [{"calculate": {"op": "+", "a": 1, "b": 2}}, busy, "Answer: 3"]
    task = vf.Task("t", "Compute 1 + 2.", 3, {"operations": 1})
    with FakeServer(script) as server:
        model = vf.ChatModel("m", base_url=server.base_url, api_key="key")
        trace = asyncio.run(vf.rollout(vf.make("calculator"), task, model))
    assert trace.reward == 1.0
    assert [message.content for message in trace.messages][-2:] == ["3", "Answer: 3"]
    first, again, last = server.requests
    assert (first.method, first.path) == ("POST", "/v1/chat/completions")
    assert first.headers["authorization"] == "Bearer key"
    assert again.body == last.body
    assert last.body["messages"][-1]["content"] == "3"


def test_models_are_listed_beside_the_script() -> None:
    with FakeServer("Hello", models=["a", {"id": "b", "max_model_len": 9}]) as server:
        a, b = client(server).models.list().data
        assert [ask(server), ask(server)] == ["Hello", "Hello"]
    assert (a.id, b.id, b.model_extra) == ("a", "b", {"max_model_len": 9})
    assert [request.path for request in server.requests] == ["/v1/chat/completions"] * 2
    with (
        FakeServer(Response("no key", status=401), models=None) as server,
        pytest.raises(openai.AuthenticationError, match="no key"),
    ):
        client(server).models.list()


def test_an_answer_waits_for_its_event_and_others_do_not() -> None:
    asked, let_go = threading.Event(), threading.Event()

    def answer(request: Request) -> Response | str:
        if request.body["messages"][0]["content"] != "slowly":
            return "fast"
        asked.set()
        return Response("slow", after=let_go)

    with FakeServer(answer) as server, ThreadPoolExecutor() as pool:
        slow = pool.submit(ask, server, "slowly")
        assert asked.wait(60)
        assert ask(server) == "fast"
        assert not slow.done()
        let_go.set()
        assert slow.result() == "slow"


def test_a_server_ends_though_an_answer_never_comes() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        def answer(request: Request) -> Response:
            asked.set()
            return Response(after=asyncio.Event())

        async with FakeServer(answer) as server:
            asking = asyncio.create_task(asyncio.to_thread(ask, server))
            await asked.wait()
        with pytest.raises(openai.APIConnectionError):
            await asking

    asyncio.run(main())


def wrong(request: Request) -> str:
    assert request.body["model"] == "another"
    return "Hello"


@pytest.mark.parametrize(
    ("script", "error"),
    [([], LookupError), (wrong, AssertionError), (Response({1, 2}), TypeError)],
    ids=["at its end", "a failed assertion", "no JSON"],
)
def test_a_failure_of_the_script_is_the_tests(script: Script, error: type[Exception]) -> None:
    said = "the fake server's script failed"
    with (
        pytest.raises(error),
        FakeServer(script) as server,
        pytest.raises(openai.BadRequestError, match=said),
    ):
        ask(server)
    with pytest.raises(openai.BadRequestError) as failed, FakeServer(script) as server:
        ask(server)
    [note] = failed.value.__notes__
    assert error.__name__ in note
