"""What is served now, who still uses what was served before, and what an outage does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inference.one_server import leased, leases_of
from vf.inference.model import Sampling
from vf.inference.serving import Served, Serving
from vf.inference.token_client import TokenClient
from vf.runtime.errors import ModelError, ServerDown
from vf.testing import FakeServer, Request, Response, completion

OPS = st.sampled_from(["lease", "release", "switch", "crash", "back"])


@given(st.lists(st.tuples(OPS, st.integers(0, 3)), max_size=30))
def test_any_order_of_events_agrees_with_a_naive_account(events: list[tuple[str, int]]) -> None:
    serving = Serving("m0")
    up, life, version = True, 0, 0
    leases: list[tuple[Served, ExitStack]] = []
    for event, number in events:
        if event == "lease" and up:
            stack = ExitStack()
            leases.append((stack.enter_context(leased(serving)), stack))
            assert leases[-1][0] == Served(f"m{version}", version, life)
        elif event == "lease":
            with pytest.raises(ServerDown), leased(serving):
                raise AssertionError("there is no server")
        elif event == "release" and leases:
            leases.pop(number % len(leases))[1].close()
        elif event == "switch":
            version = number
            serving.switch(f"m{version}", version)
        elif event == "crash" and up:
            up, life = False, life + 1
            serving.down()
        elif event == "back":
            up = True
            serving.up()
        assert serving.served == Served(f"m{version}", version, life)
        held = {served.model for served, _ in leases}
        assert {m for m in ("m0", "m1", "m2", "m3") if serving.in_use(m)} == held
        for served, _ in leases:
            assert serving.lost(served) == (not up or served.life != life)


def test_a_lease_ends_also_where_the_request_fails() -> None:
    serving = Serving("m")
    with pytest.raises(ZeroDivisionError), leased(serving):
        raise ZeroDivisionError
    assert not serving.in_use("m")


def test_what_a_thread_uses_is_known_to_be_in_use_while_others_switch() -> None:
    serving = Serving("m0")
    problems: list[str] = []
    done = threading.Event()

    def request(seed: int) -> None:
        random = Random(seed)
        while not done.is_set():
            with leased(serving) as served:
                if served.model != f"m{served.version}":
                    problems.append(f"mixed: {served}")
                for _ in range(random.randrange(50)):
                    if not serving.in_use(served.model):
                        problems.append(f"not in use: {served}")

    threads = [threading.Thread(target=request, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for version in range(1, 2000):
        serving.switch(f"m{version}", version)
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert not any(serving.in_use(f"m{version}") for version in range(2000))


def test_who_waits_is_let_through_when_the_server_is_back() -> None:
    async def run() -> None:
        serving = Serving("m")
        await asyncio.wait_for(leases_of(serving).available(), 60)
        serving.down()
        waiting = asyncio.create_task(leases_of(serving).available())
        await asyncio.sleep(0)  # it begins to wait
        assert not waiting.done()
        await asyncio.to_thread(serving.up)
        await asyncio.wait_for(waiting, 60)

    asyncio.run(run())


def test_a_request_that_waits_fails_with_the_reason_why_the_server_is_gone() -> None:
    async def run() -> None:
        serving = Serving("m")
        serving.down()
        waiting = asyncio.create_task(leases_of(serving).available())
        await asyncio.sleep(0)  # it begins to wait
        serving.fail("the disk is full")
        with pytest.raises(ServerDown, match="the disk is full"):
            await asyncio.wait_for(waiting, 60)
        with pytest.raises(ServerDown, match="the disk is full"), leased(serving):
            pass

    asyncio.run(run())


@pytest.mark.parametrize(
    ("crashes", "back", "raised"),
    [(False, False, ModelError), (True, False, ServerDown), (True, True, ServerDown)],
)
def test_a_failed_request_is_an_outage_only_if_the_server_went_down(
    crashes: bool, back: bool, raised: type[Exception]
) -> None:
    async def run() -> None:
        serving = Serving("m")

        def answer(request: Request) -> Response:
            if crashes:
                serving.down()
            if back:
                serving.up()
            return Response("EngineCore encountered an issue", 400)

        async with FakeServer(answer) as server:
            client = TokenClient.to(server.base_url, serving, max_retries=0)
            try:
                with pytest.raises(ModelError, match="EngineCore encountered") as error:
                    await client.complete([1], Sampling(), [0])
            finally:
                await client.close()
        assert error.type is raised
        assert not serving.in_use("m")

    asyncio.run(run())


def test_a_request_asks_for_what_was_served_when_it_began_and_is_counted() -> None:
    async def run() -> None:
        serving = Serving("m1", 1)
        seen: list[bool] = []

        def answer(request: Request) -> Response:
            serving.switch("m2", 2)
            seen.append(serving.in_use("m1"))
            return completion([5, 6], weight_versions=None)

        async with FakeServer(answer) as server:
            client = TokenClient.to(server.base_url, serving, max_retries=0)
            first = await client.complete([1], Sampling(), [0])
            second = await client.complete([1], Sampling(), [0])
            await client.close()
        assert [body["model"] for body in server.bodies] == ["m1", "m2"]
        assert (first.versions, second.versions) == ([1, 1], [2, 2])
        assert seen == [True, False]

    asyncio.run(run())
