"""What is asked again, and when: one policy for everything that asks a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

import vf
from tests.inference.providers.table import PROVIDERS
from tests.rubrics.one_answer import answered
from tests.rubrics.scripted_judge import saying, verdicts
from vf.inference.model import Conversation, Sampling
from vf.inference.patience import AWAY_SECONDS, Again, Patience, Request
from vf.inference.token_client import TokenClient
from vf.inference.wire import MOST_AFTER, refusal, retry_after
from vf.runtime.errors import ModelError
from vf.testing import FakeServer, Response, completion

NOW = datetime(2020, 3, 1, 12, tzinfo=UTC)
GOOD = PROVIDERS["openai"].answer("Hello!")
PASSING = [409, 425, 429, 500, 502, 503, 507, *range(520, 531)]


def date(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "1e9"}, MOST_AFTER),
        ({"Retry-After": "inf"}, MOST_AFTER),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "5s"}, 5.0),
        ({"Retry-After": "10 seconds"}, 10.0),
        ({"Retry-After": "500ms"}, 0.5),
        ({"Retry-After": "0m2.5s"}, 2.5),
        ({"Retry-After": "1h"}, MOST_AFTER),
        ({"Retry-After": "5, 5"}, None),
        ({"Retry-After": date(7), "Date": date(0)}, 7.0),
        ({"Retry-After": date(-7), "Date": date(0)}, 0.0),
        ({"Retry-After": date(10**9), "Date": date(0)}, MOST_AFTER),
        ({"Retry-After": "Sun, 01 Mar 2020 12:00:07 -0000", "Date": date(0)}, 7.0),
        ({"Retry-After": date(7), "Date": "yesterday"}, None),
        ({"Retry-After": date(0)}, 0.0),  # long ago, by this machine's clock
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "Retry-After": "30"}, 1.5),
        ({"retry-after-ms": "x", "Retry-After": "30"}, 30.0),
        ({"retry-after-ms": "1e12"}, MOST_AFTER),
    ],
)
def test_when_a_server_wants_to_be_asked_again(
    headers: Mapping[str, str], seconds: float | None
) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize("status", PASSING)
@pytest.mark.parametrize("known", [True, False])
def test_a_server_is_asked_again_when_it_wants_and_within_the_patience(
    status: int, known: bool
) -> None:
    """It sets the pause, but can neither make it endless nor use up the patience at once."""

    async def main() -> list[float]:
        patience = Patience("m", timeout=60.0, max_retries=4, has_answered=known)
        pauses = []
        for headers in ({"Retry-After": "1e9"}, {"retry-after-ms": "9000"}, {}):

            async def send(headers: Mapping[str, str] = headers) -> None:
                raise refusal("busy", status, retry_after(headers))

            with pytest.raises(Again) as again:
                await patience.attempt(send, Request(64))
            pauses.append(again.value.seconds)
        return pauses

    longest, chosen, own = asyncio.run(main())
    assert longest == MOST_AFTER < AWAY_SECONDS
    assert chosen == 9.0
    assert own < 1.0


@pytest.mark.parametrize("status", PASSING)
def test_models_and_judges_repeat_what_passes(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vf.inference.patience.pause", lambda backoff, attempt: 0.0)

    async def main() -> None:
        refused = [Response("Come back later.", status) for _ in range(2)]
        async with FakeServer([*refused, Response(GOOD)]) as server:
            model = vf.ChatModel("m", base_url=server.base_url)
            reply = await model.respond(Conversation([vf.Message("user", "x")]), Sampling())
            await model.close()
            assert (reply.message.content, len(server.bodies)) == ("Hello!", 3)
        script = iter([Response("Come back later.", status) for _ in range(2)])
        verdict = saying(*verdicts("right"))
        async with FakeServer(lambda request: next(script, None) or verdict(request)) as server:
            judge = vf.Judge("m", base_url=server.base_url, api_key_env=None)
            assert await judge(answered("4", "4")) == 1.0
            await judge.close()
            assert len(server.bodies) == 3

    asyncio.run(main())


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 410, 418, 451, 501])
def test_what_does_not_pass_is_final(status: int) -> None:
    async def main() -> list[Any]:
        async with FakeServer(Response("No.", status)) as server:
            model = vf.ChatModel("m", base_url=server.base_url)
            with pytest.raises(ModelError, match=f": {status}: No"):
                await model.respond(Conversation([vf.Message("user", "x")]), Sampling())
            await model.close()
            return server.bodies

    assert len(asyncio.run(main())) == 1


def test_a_query_in_the_address_goes_along_with_every_request() -> None:
    async def main() -> None:
        async with FakeServer(Response(GOOD)) as server:
            address = f"{server.base_url}?api-version=2024-10-21"
            model = vf.ChatModel("m", base_url=address)
            await model.respond(Conversation([vf.Message("user", "x")]), Sampling())
            await model.close()
            [request] = server.requests
            assert request.path.endswith("/v1/chat/completions")
            assert request.query == {"api-version": "2024-10-21"}

    asyncio.run(main())


def test_what_broke_a_connection_is_said() -> None:
    async def main() -> None:
        odd = Response(b"no gzip", headers={"content-encoding": "gzip"})
        async with FakeServer(odd) as server:
            model = vf.ChatModel("m", base_url=server.base_url, max_retries=0)
            with pytest.raises(ModelError, match="DecodingError"):
                await model.respond(Conversation([vf.Message("user", "x")]), Sampling())
            await model.close()

    asyncio.run(main())


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_engine_that_was_interrupted_is_asked_again(reason: str) -> None:
    async def main() -> None:
        interrupted = [completion([5], reason), completion([], reason)]
        async with FakeServer([*interrupted, completion([5, 6])]) as server:
            client = TokenClient.to(server.base_url, "m", backoff=0.0)
            found = await client.complete([1], Sampling(8), [0])
            await client.close()
            assert (found.token_ids, len(server.bodies)) == ([5, 6], 3)

    asyncio.run(main())
