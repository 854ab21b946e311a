"""Which server a request gets, how long it waits for one, and what happens to a cancelled one."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from vf.inference.leases import Lease, Member, Router, Slot
from vf.inference.model import Sampling
from vf.inference.serving import Serving
from vf.inference.token_client import TokenClient
from vf.runtime.errors import ServerDown
from vf.testing import FakeServer, Response, completion


def slots(count: int) -> list[Slot]:
    """Return so many servers, none of which is ever asked."""
    return [Slot(Member(f"http://server-{n}/v1"), Serving("m")) for n in range(count)]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(guarded())


async def waiting(work: Awaitable[Lease]) -> asyncio.Future[Lease]:
    """Begin to take a lease that cannot be had yet."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_new_conversations_go_to_the_least_loaded_and_stay_there() -> None:
    async def main() -> None:
        router = Router(slots(3))
        first = [await router.take(f"c{n}") for n in range(9)]
        assert set(Counter(lease.member for lease in first).values()) == {3}
        for lease in first:
            assert not await router.give_back(lease)
        for n in Random(0).choices(range(9), k=50):
            again = await router.take(f"c{n}")
            assert again.member == first[n].member
            await router.give_back(again)
        busy = [await router.take("c0") for _ in range(5)]
        others = [await router.take("") for _ in range(6)]
        assert busy[0].member not in [lease.member for lease in others]

    run(main)


def test_conversations_of_a_server_that_is_gone_move_and_stay_where_they_went() -> None:
    async def main() -> None:
        one, two = servers = slots(2)
        router = Router(servers)
        leases = {key: await router.take(key) for key in "abcd"}
        on_one = [key for key, lease in leases.items() if lease.member == one.member]
        assert len(on_one) == 2
        one.serving.down()
        lost = {key: await router.give_back(lease) for key, lease in leases.items()}
        assert [key for key in "abcd" if lost[key]] == on_one
        moved = [await router.take(key) for key in "abcd"]
        assert {lease.member for lease in moved} == {two.member}
        one.serving.up()
        assert (await router.take("new")).member == one.member
        assert (await router.take(on_one[0])).member == two.member

    run(main)


def test_a_conversation_keeps_the_salt_that_it_began_with_on_its_server() -> None:
    async def main() -> None:
        servings = [Serving("m", keeps_cache=True) for _ in range(2)]
        one, two = (Slot(Member(f"http://server-{n}/v1"), s) for n, s in enumerate(servings))
        router = Router([one, two])

        async def salt(conversation: str) -> str:
            lease = await router.take(conversation)
            await router.give_back(lease)
            return lease.served.cache_salt

        two.serving.down()
        began = await salt("a")
        assert await salt("b") == began, "a group shares its prompt"
        one.serving.switch("m", 1)
        assert await salt("a") == began
        later = {await salt("c"), await salt(""), (await router.only(one).take("a")).served[-1]}
        assert len(later) == 1, "all that begin with new weights"
        assert began not in later
        two.serving.up()
        one.serving.down()
        moved = await salt("a")
        assert moved not in {began, *later}
        two.serving.switch("m", 1)
        assert await salt("a") == moved
        router = Router([Slot(Member("http://server/v1"), Serving("m"))])
        assert await salt("a") == "", "where nothing stale is kept"

    run(main)


def test_who_is_refused_learns_of_a_server_that_may_come_back() -> None:
    async def main() -> None:
        one, two = servers = slots(2)
        router = Router(servers)
        for slot in servers:
            slot.serving.down()
        one.serving.fail("it died too often")
        with pytest.raises(ServerDown, match="is being started again"):
            await router.take("")
        two.serving.fail("so did this")
        with pytest.raises(ServerDown, match="it died too often"):
            await router.take("")

    run(main)


def test_who_waits_for_a_server_that_goes_down_is_answered_by_another() -> None:
    async def main() -> None:
        one, two = servers = slots(2)
        router = Router(servers)
        two.serving.down()
        await router.give_back(await router.take("a"))
        two.serving.up()
        with one.serving.hold(drain=False):
            turn = await waiting(router.take("a"))
            assert (await router.take("b")).member == two.member
            await asyncio.to_thread(one.serving.down)
            assert (await turn).member == two.member

    run(main)


def test_without_any_server_who_waits_learns_why_at_once() -> None:
    async def main() -> None:
        servers = slots(2)
        router = Router(servers)
        for slot in servers:
            slot.serving.limit(0)
        turn = await waiting(router.take("a"))
        available = [asyncio.create_task(router.available()) for _ in range(2)]
        await asyncio.gather(*available)
        for slot in servers:
            slot.serving.down()
        with pytest.raises(ServerDown, match="being started again"):
            await turn
        with pytest.raises(ServerDown, match="being started again"):
            await router.take("a")
        available = [asyncio.create_task(router.available()) for _ in range(2)]
        await asyncio.sleep(0)
        servers[0].serving.fail("the disk is full")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(each.done() for each in available), "the other may come back"
        servers[1].serving.fail("the disk is full")
        for each in available:
            with pytest.raises(ServerDown, match="the disk is full"):
                await each

    run(main)


def test_no_more_are_under_way_than_a_server_can_do_and_all_get_their_turn() -> None:
    async def main() -> None:
        (slot,) = servers = slots(1)
        router = Router(servers)
        slot.serving.limit(4)
        order: list[int] = []
        most = 0

        async def request(number: int) -> None:
            nonlocal most
            lease = await router.take(f"{number}")
            order.append(number)
            most = max(most, slot.serving.under_way)
            await asyncio.sleep(0)
            await router.give_back(lease)

        await asyncio.gather(*(request(number) for number in range(40)))
        assert (most, order) == (4, list(range(40)))
        assert slot.serving.under_way == 0

    run(main)


def test_a_cancelled_request_leaves_no_lease_behind_whenever_it_is_cancelled() -> None:
    async def main() -> None:
        (slot,) = servers = slots(1)
        router = Router(servers)
        slot.serving.limit(1)
        held = await router.take("a")
        waits = await waiting(router.take("b"))
        granted = await waiting(router.take("c"))
        waits.cancel()
        await asyncio.sleep(0)
        await router.give_back(held)  # to c, which has not run since
        granted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await granted
        assert slot.serving.under_way == 0
        await router.take("d")

    run(main)


def test_a_lease_is_given_back_once() -> None:
    async def main() -> None:
        (slot,) = servers = slots(1)
        router = Router(servers)
        lease = await router.take("a")
        other = await router.take("b")
        assert pickle.loads(pickle.dumps(lease)) == lease
        assert [await router.give_back(lease) for _ in range(2)] == [False, True]
        assert slot.serving.under_way == 1
        assert not await router.give_back(other)

    run(main)


def test_several_event_loops_share_the_servers() -> None:
    (slot,) = servers = slots(1)
    router = Router(servers)
    slot.serving.limit(2)
    most: list[int] = []

    async def many() -> None:
        async def one(number: int) -> None:
            lease = await router.take(f"{number}")
            most.append(slot.serving.under_way)
            await asyncio.sleep(0)
            await router.give_back(lease)

        await asyncio.gather(*(one(number) for number in range(200)))

    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, many()) for _ in range(3)))

    run(main)
    assert len(most) == 600
    assert max(most) <= 2
    assert slot.serving.under_way == 0


async def two_servers(
    answer: Callable[[Slot, FakeServer], Response],
) -> tuple[list[int], list[int]]:
    """Ask for ten completions of two servers; return the ids, and the requests of each server."""
    servers = slots(2)
    async with (
        FakeServer(lambda request: answer(servers[0], one)) as one,
        FakeServer(lambda request: answer(servers[1], two)) as two,
    ):
        for slot, server in zip(servers, (one, two), strict=True):
            slot.member = Member(server.base_url)
        client = TokenClient(Router(servers), max_retries=0)
        try:
            found = [
                (await client.complete([1], Sampling(), [0], f"{n}")).token_ids[0]
                for n in range(10)
            ]
        finally:
            await client.close()
        return found, [len(one.bodies), len(two.bodies)]


def test_a_request_that_a_server_takes_down_with_it_is_asked_of_another() -> None:
    crashed: list[Slot] = []

    def answer(slot: Slot, server: FakeServer) -> Response:
        if len(server.bodies) == 3 and not crashed:
            crashed.append(slot)
            slot.serving.down()
            return Response("EngineCore encountered an issue", 400)
        return completion([7])

    found, counts = asyncio.run(two_servers(answer))
    assert found == [7] * 10
    assert sum(counts) == 11, "one was asked twice"
    assert sorted(counts) == [3, 8]


def test_a_request_that_takes_down_every_server_is_not_asked_for_ever() -> None:
    def answer(slot: Slot, server: FakeServer) -> Response:
        slot.serving.down()
        slot.serving.up()
        return Response("EngineCore encountered an issue", 400)

    with pytest.raises(ServerDown, match="EngineCore encountered"):
        asyncio.run(two_servers(answer))
