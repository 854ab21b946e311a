"""The leases of a worker process: it asks the trainer's process for each."""

from __future__ import annotations

import asyncio
import itertools

from vf.inference.leases import Lease, Leases, Member
from vf.runtime.peers import Handler, Peer


class RemoteLeases:
    """Leases that another process gives: the worker's end.

    Args:
        peer: The trainer's process, which has a :class:`Tenant` for this one.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._numbers = itertools.count()

    async def take(self, conversation: str) -> Lease:
        """See :class:`~vf.inference.leases.Leases`."""
        number = next(self._numbers)
        try:
            lease: Lease = await self._peer.call("take", number, conversation)
        except asyncio.CancelledError:
            self._peer.tell("drop", number)  # it may have been given before the call was cancelled
            raise
        return lease

    async def give_back(self, lease: Lease) -> bool:
        """See :class:`~vf.inference.leases.Leases`."""
        try:
            lost: bool = await self._peer.call("give_back", lease.number)
        except asyncio.CancelledError:
            self._peer.tell("drop", lease.number)
            raise
        return lost

    async def still(self, member: Member) -> bool:
        """See :class:`~vf.inference.leases.Leases`."""
        still: bool = await self._peer.call("still", member)
        return still

    async def available(self) -> None:
        """See :class:`~vf.inference.leases.Leases`."""
        await self._peer.call("available")


class Tenant:
    """What one worker holds of the engine's leases: the trainer's end.

    A lease's number is the worker's own, so that it can drop one without having seen it.

    Args:
        leases: The engine's.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._held: dict[int, Lease] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        """What the worker may call."""
        return {
            "take": self._take,
            "give_back": self._give_back,
            "drop": self._drop,
            "still": self._leases.still,
            "available": self._leases.available,
        }

    async def leave(self) -> None:
        """Give back what the worker still holds: it has ended."""
        for number in [*self._held]:
            await self._give_back(number)

    async def _take(self, number: int, conversation: str) -> Lease:
        lease = self._held[number] = await self._leases.take(conversation)
        return lease._replace(number=number)

    async def _give_back(self, number: int) -> bool:
        return await self._leases.give_back(self._held.pop(number))

    async def _drop(self, number: int) -> None:
        if number in self._held:
            await self._give_back(number)
