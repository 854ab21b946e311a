"""A worker process's leases are given back, whatever happens to the worker or of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from vf.inference.leases import Lease, Member, Router, Slot
from vf.inference.serving import Serving
from vf.runtime.errors import ServerDown
from vf.runtime.meeting import INVITATION, connect, listen
from vf.runtime.peers import Peer
from vf.trainer.collecting.worker_leases import RemoteLeases, Tenant

MEMBER = Member("http://127.0.0.1:1/v1")


class Watched(Router):
    """Calls a function whenever a lease has been given, before anybody hears of it."""

    given: Callable[[], object] = staticmethod(lambda: None)

    async def take(self, conversation: str) -> Lease:
        lease = await super().take(conversation)
        self.given()
        return lease


@asynccontextmanager
async def connected(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RemoteLeases, Peer, Watched]]:
    """Yield a worker's leases, its connection, and the trainer's own leases."""
    router = Watched([Slot(MEMBER, serving)])
    tenant = Tenant(router)
    async with listen() as listener:
        invitation = listener.invite("worker")
        monkeypatch.setenv(INVITATION, invitation.environ[INVITATION])
        worker, trainer = await asyncio.gather(
            connect({}), invitation.accepted(tenant.handlers, 10.0)
        )
        ends = [asyncio.create_task(each.serve()) for each in (worker, trainer)]
        try:
            yield RemoteLeases(worker), worker, router
        finally:
            await worker.close()
            await asyncio.gather(*ends)
            await tenant.leave()


async def test_a_lease_says_what_is_served_and_who_serves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = Serving("tiny", 3)

    async with connected(serving, monkeypatch) as (leases, _, _):
        await leases.available()
        lease = await leases.take("a")
        assert (lease.member, lease.served.model, lease.served.version) == (MEMBER, "tiny", 3)
        assert serving.under_way == 1
        assert not await leases.still(MEMBER)
        with serving.still():
            assert await leases.still(MEMBER)
        assert not await leases.give_back(lease)
        assert serving.under_way == 0
        lease = await leases.take("a")
        serving.down()
        assert await leases.give_back(lease), "its server was lost meanwhile"
        with pytest.raises(ServerDown):
            await leases.take("a")


async def test_a_request_that_is_cancelled_while_it_waits_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = Serving("tiny")

    async with connected(serving, monkeypatch) as (leases, _, _):
        with serving.hold(drain=False):
            waiting = asyncio.create_task(leases.take(""))
            await leases.still(MEMBER)  # the request is there
            waiting.cancel()
            await asyncio.wait([waiting])
        assert waiting.cancelled()
        await leases.still(MEMBER)
        assert serving.under_way == 0


async def test_a_lease_that_is_given_together_with_the_cancellation_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = Serving("tiny")

    async with connected(serving, monkeypatch) as (leases, _, router):
        waiting = asyncio.create_task(leases.take(""))
        router.given = waiting.cancel
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await leases.still(MEMBER)  # whatever was sent before has arrived
        assert serving.under_way == 0


async def test_what_a_worker_holds_is_given_back_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = Serving("tiny")

    async with connected(serving, monkeypatch) as (leases, worker, _):
        for _ in range(3):
            await leases.take("")
        assert serving.under_way == 3
        await worker.close()
    assert serving.under_way == 0
