"""How long an answer is waited for, and what is asked again, against real servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import vf
from tests.inference.patient_server import TIMEOUT, Server, forever, serving
from tests.waiting import Clock, until
from vf.inference.completions import Completion
from vf.inference.model import Conversation, Sampling
from vf.inference.serving import Serving
from vf.inference.token_client import TokenClient
from vf.runtime.errors import ModelError, ServerDown
from vf.runtime.own_deadline import clocked
from vf.testing import Response, chat_completion, completion

SHORT = 0.2  # where it is waited for


async def ask(client: TokenClient, max_tokens: int = 8) -> Completion:
    return await client.complete([1], Sampling(max_tokens=max_tokens, seed=3), [0])


def seen_by(client: TokenClient) -> float | None:
    """Return what the server's ``/metrics`` counted when the client last looked for progress."""
    [line] = client._lines.values()
    return line.patience._tokens


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_an_answer_is_waited_for_as_long_as_the_server_samples(clock: Clock) -> None:
    async def main() -> None:
        async with serving() as (server, client):

            async def slowly(number: int) -> Response:
                for tokens in range(40):
                    server.tokens = float(tokens)
                    await clock.skip(TIMEOUT / 8)
                    await until(lambda: seen_by(client) == server.processed)
                return completion([5, 6])

            server.answer = slowly
            assert (await ask(client)).token_ids == [5, 6]
            assert server.requests == 1

    run(main)


def test_an_answer_without_progress_is_given_up_and_not_asked_for_again(clock: Clock) -> None:
    async def main() -> None:
        async with serving() as (server, client):
            server.answer, server.tokens = forever, 7.0
            asking = asyncio.create_task(ask(client, max_tokens=100_000))
            await until(lambda: server.requests)
            await clock.skip(TIMEOUT / 2)
            await until(lambda: seen_by(client) == server.processed)
            await clock.skip(TIMEOUT)
            with pytest.raises(ModelError, match=r"sampled no token for 10 s.*generation_time"):
                await asking
            await server.gone.wait()  # it sees the connection close, and can stop sampling
            assert server.requests == 1

    run(main)


def test_the_time_grows_with_max_tokens_where_the_server_counts_none() -> None:
    async def main() -> None:
        async with serving(timeout=SHORT) as (server, client):
            server.answer = forever
            loop = asyncio.get_running_loop()
            for max_tokens, seconds in ((16, SHORT), (3 * 1024, 3 * SHORT)):
                started = loop.time()
                with pytest.raises(ModelError, match=f"not answer within {seconds:g} s"):
                    await ask(client, max_tokens)
                assert loop.time() - started >= seconds
            assert server.requests == 2

    run(main)


def test_an_answer_that_waits_in_the_servers_queue_is_not_given_up_while_others_come(
    clock: Clock,
) -> None:
    async def main() -> None:
        came: list[int] = []

        async with serving() as (server, client):

            async def one_by_one(number: int) -> Response:
                await until(lambda: server.requests == 8 and len(came) == number - 1)
                await clock.skip(TIMEOUT / 2)
                return completion([number])

            async def one() -> None:
                came.extend((await ask(client)).token_ids)

            server.answer = one_by_one
            await asyncio.gather(*(one() for _ in range(8)))
            assert came == list(range(1, 9))
            assert server.requests == 8

    run(main)


def test_time_in_which_the_server_is_paused_does_not_count(clock: Clock) -> None:
    async def main() -> None:
        served, let_go = Serving("m"), asyncio.Event()
        async with serving(served) as (server, client):

            async def when_let_go(number: int) -> Response:
                await let_go.wait()
                return completion([5])

            server.answer, server.tokens = when_let_go, 7.0
            with served.still():
                asking = asyncio.create_task(ask(client))
                await until(lambda: server.requests)
                for _ in range(8):
                    await clock.skip(TIMEOUT / 2)
                assert not asking.done()
            let_go.set()
            assert (await asking).token_ids == [5]

    run(main)


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_server_that_is_paused_or_overloaded_is_waited_for(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for longer than the retries of other errors last."""

    async def main() -> None:
        async with serving(max_retries=1) as (server, client):

            async def later(number: int) -> Response:
                return completion([5]) if number > 6 else Response("paused", status)

            server.answer = later
            answers = await asyncio.gather(*(ask(client) for _ in range(3)))
            assert [answer.token_ids for answer in answers] == [[5]] * 3

    with caplog.at_level(logging.WARNING):
        run(main)
    [said] = [record.getMessage() for record in caplog.records]
    assert f"answered {status}: paused; it is waited for, up to 60 s" in said


def test_a_server_is_waited_for_longer_than_an_answer_may_take(clock: Clock) -> None:
    async def main() -> None:
        async with serving(max_retries=1) as (server, client):

            async def later(number: int) -> Response:
                await clock.skip(TIMEOUT / 2)
                return completion([5]) if number > 6 else Response("paused", 503)

            server.answer = later
            assert (await ask(client)).token_ids == [5]

    run(main)


def test_a_server_that_stays_away_is_given_up_at_a_deadline() -> None:
    async def main() -> None:
        async with serving(away=0.3) as (server, client):
            server.answer = Response("paused", 503)
            with pytest.raises(ModelError, match=r"answered 503: paused \(for 0\.3 s"):
                await ask(client)

    run(main)


@pytest.mark.parametrize("known", [False, True])
def test_a_server_that_has_answered_is_waited_for_while_it_refuses_connections(
    clock: Clock, known: bool
) -> None:
    async def main() -> None:
        async with serving(max_retries=1, has_answered=known) as (server, client):
            _ = known or await ask(client)
            await server.http.stop()
            asking = asyncio.create_task(ask(client))
            await clock.skip(3 * TIMEOUT)
            done, _ = await asyncio.wait([asking], timeout=0.3)
            assert not done
            await server.http.start()
            assert (await asking).token_ids == [5, 6]

    run(main)


def test_an_address_where_nothing_has_ever_answered_is_not_waited_for() -> None:
    async def main() -> None:
        async with serving(max_retries=2) as (server, client):
            await server.http.stop()
            with pytest.raises(ModelError, match=r"ClientConnectorError.*after 3 attempts"):
                await ask(client)

    run(main)


def test_the_end_of_our_own_server_is_an_outage_at_once_though_it_refuses_connections() -> None:
    async def main() -> None:
        served = Serving("m")
        async with serving(served) as (server, client):
            await ask(client)
            await server.http.stop()
            asking = asyncio.create_task(ask(client))
            await asyncio.sleep(0)
            served.down()
            with pytest.raises(ServerDown):
                await asking

    run(main)


@pytest.mark.parametrize("status", [408, 504])
def test_a_timeout_of_the_server_or_a_proxy_is_not_asked_for_again(status: int) -> None:
    async def main() -> None:
        async with serving() as (server, client):
            server.answer = Response("too late", status)
            with pytest.raises(ModelError, match=f"answered {status}: too late"):
                await ask(client)
            assert server.requests == 1

    run(main)


def test_an_attempt_after_a_publish_asks_for_the_new_weights() -> None:
    async def main() -> None:
        served = Serving("m", 1)
        async with serving(served) as (server, client):

            async def published(number: int) -> Response:
                if number == 1:
                    served.switch("m", 2)
                    return Response("paused", 503)
                return completion([5], weight_versions=None)

            server.answer = published
            assert (await ask(client)).versions == [2]

    run(main)


def test_a_rollouts_clock_does_not_run_while_a_server_answers(clock: Clock) -> None:
    async def main() -> None:
        async with serving(timeout=10_000.0) as (server, client):

            async def late(number: int) -> Response:
                await clock.skip(1000.0)
                return completion([5])

            server.answer = late
            async with clocked(600.0):
                await ask(client)
                await clock.skip(300.0)
                await asyncio.gather(ask(client), ask(client))
            async with clocked(600.0) as deadline:
                await ask(client)
                assert deadline.when() is not None  # it runs again

    run(main)


def chat(server: Server, **settings: Any) -> vf.ChatModel:
    how = {"timeout": TIMEOUT} | settings
    return vf.ChatModel("m", base_url=server.http.base_url, api_key="x", **how)


def test_a_chat_answer_that_takes_too_long_is_given_up_and_not_asked_for_again() -> None:
    async def main() -> None:
        async with serving() as (server, _):
            server.answer, model = forever, chat(server, timeout=SHORT)
            conversation = Conversation([vf.Message("user", "x")])
            with pytest.raises(ModelError, match=r"m did not answer within 0\.4 s"):
                await model.respond(conversation, Sampling(max_tokens=2048))
            await server.gone.wait()
            assert server.requests == 1
            await model.close()

    run(main)


@pytest.mark.slow
def test_a_chat_api_that_is_overloaded_is_waited_for() -> None:
    async def main() -> None:
        async with serving() as (server, _):

            async def later(number: int) -> Response:
                return chat_completion("hi") if number > 3 else Response("slow down", 429)

            server.answer, model = later, chat(server, max_retries=1)
            reply = await model.respond(Conversation([vf.Message("user", "x")]), Sampling())
            assert reply.message.content == "hi"
            assert server.requests == 4
            await model.close()

    run(main)


def test_a_chat_api_without_credit_is_not_waited_for() -> None:
    async def main() -> None:
        async with serving() as (server, _):
            error = {"message": "no credit", "type": "x", "code": "insufficient_quota"}
            server.answer, model = Response({"error": error}, 429), chat(server)
            with pytest.raises(ModelError, match="no credit"):
                await model.respond(Conversation([vf.Message("user", "x")]), Sampling())
            assert server.requests == 1
            await model.close()

    run(main)
