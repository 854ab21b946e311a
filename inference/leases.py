"""Which server, with which weights, a request goes to: leased before each request.

Requests and answers go straight to the servers, from whichever process a rollout is in. What is
served changes in one process, the trainer's, so each request asks there for a lease: a server, the
model's name on it and the version of its weights. Until the lease is given back the request is
known to be under way, so that weights are not exchanged, nor adapters dropped, below it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from vf.inference.serving import Served, Serving
from vf.runtime.errors import ServerDown

KEPT = 65_536  # conversations whose server is remembered


@dataclass(frozen=True, slots=True)
class Member:
    """How one inference server is reached. It can be sent to other processes.

    Attributes:
        base_url: Up to and including ``/v1``; for the wire ``generate``, the server's root.
        wire: Which API is asked: OpenAI's completions, the same of vLLM, vLLM's
            ``/inference/v1/generate``, or the Tinker API.
        api_key: Sent as a bearer token, if there is one.
        away: Seconds for which it is waited for while it refuses connections.
    """

    base_url: str
    wire: Literal["openai", "vllm", "generate", "tinker"] = "openai"
    api_key: str | None = field(default=None, repr=False)
    away: float = 900.0


class Lease(NamedTuple):
    """One request's place on a server; ``number`` is the lease's own."""

    number: int
    member: Member
    served: Served


class Leases(Protocol):
    """Gives every request its server."""

    async def take(self, conversation: str) -> Lease:
        """Wait until a server can be asked, and return which.

        Args:
            conversation: Key of what the request continues. It stays with its server, which has
                its prefix cached, as long as that one lives. Empty for none.

        Raises:
            ServerDown: If all servers are away at present.
        """
        ...

    async def give_back(self, lease: Lease) -> bool:
        """Note that a request has ended; return whether its server was lost meanwhile.

        It takes effect also where the caller is cancelled while it waits.
        """
        ...

    async def still(self, member: Member) -> bool:
        """Return whether a server samples nothing at present, to train or to change its weights."""
        ...

    async def available(self) -> None:
        """Wait until some server can be asked.

        Raises:
            ServerDown: If no server will come back.
        """
        ...


@dataclass(eq=False)
class Slot:
    """One server of a router.

    Attributes:
        member: How it is reached.
        serving: What it serves.
    """

    member: Member
    serving: Serving
    waiting: deque[_Turn] = field(default_factory=deque, repr=False)
    conversations: int = 0


@dataclass(eq=False, slots=True)
class _Turn:
    """A request that waits for its lease."""

    conversation: str
    only: Slot | None  # the server that it is for, and no other
    settled: asyncio.Future[None] | None = None  # once it really has to wait
    lease: Lease | None = None
    error: ServerDown | None = None
    gone: bool = False  # the request was cancelled


class Router:
    """The leases of one server or several, in the process where these are managed.

    A conversation stays with its server. A new one, or one whose server is gone, gets the server
    with the fewest requests under way. Requests wait, in order, while weights are exchanged below
    them or their server has enough to do.

    It may be used in several event loops at once.

    Args:
        slots: The servers.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = tuple(slots)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._leases: dict[int, tuple[Slot, Served]] = {}
        # The server of each conversation and its salt there; the latest to ask is last.
        self._at: OrderedDict[str, tuple[Slot, str]] = OrderedDict()
        self._new: deque[_Turn] = deque()  # that any server may answer
        self._watching: set[asyncio.Future[None]] = set()  # who waits for any server at all
        for slot in self._slots:
            slot.serving.listen(self._changed)

    def only(self, slot: Slot) -> Leases:
        """Return the leases of one of the servers: no request moves to another."""
        return _Only(self, slot)

    async def take(self, conversation: str) -> Lease:
        """Return the next request's lease; see :class:`Leases`.

        Raises:
            ServerDown: If all servers are away at present.
        """
        return await self.take_of(None, conversation)

    async def take_of(self, only: Slot | None, conversation: str) -> Lease:
        """Return the next request's lease, of one server if it is named.

        Raises:
            ServerDown: If that server or all of them are away at present.
        """
        turn = _Turn(conversation, only)
        with self._lock:
            slot = only or (self._at.get(conversation, (None, ""))[0] if conversation else None)
            (self._new if slot is None else slot.waiting).append(turn)
            self._grant()
            if turn.lease is None and turn.error is None:
                turn.settled = asyncio.get_running_loop().create_future()
        try:
            if turn.settled is not None:
                await turn.settled
        except asyncio.CancelledError:
            with self._lock:
                turn.gone = True
            if turn.lease is not None:  # granted together with the cancellation
                await self.give_back(turn.lease)
            raise
        if turn.error is not None:
            raise turn.error
        assert turn.lease is not None
        return turn.lease

    async def give_back(self, lease: Lease) -> bool:
        """Note that a request has ended; see :class:`Leases`."""
        with self._lock:
            slot, served = self._leases.pop(lease.number, (None, lease.served))
            if slot is None:
                return True
            slot.serving.end(served)
            self._grant()
            return slot.serving.lost(served)

    async def still(self, member: Member) -> bool:
        """Return whether a server samples nothing at present; see :class:`Leases`."""
        return any(slot.serving.is_still() for slot in self._slots if slot.member == member)

    async def available(self) -> None:
        """Wait until some server is up; see :class:`Leases`.

        Raises:
            ServerDown: If no server will come back.
        """
        while True:
            changed = asyncio.get_running_loop().create_future()
            with self._lock:
                self._watching.add(changed)
            try:
                if any(slot.serving.is_up for slot in self._slots):
                    return
                if all(slot.serving.failure for slot in self._slots):
                    raise ServerDown(self._slots[0].serving.absence)
                await changed
            finally:
                with self._lock:
                    self._watching.discard(changed)

    def _changed(self) -> None:
        """Look again at who waits: a server's state is another one. Called in any thread."""
        with self._lock:
            self._grant()
            for future in self._watching:
                _settle(future)

    def _grant(self) -> None:
        """Give leases to those who wait and can have one."""
        for slot in self._slots:
            if slot.waiting and not slot.serving.is_up:
                turns = [*slot.waiting]
                slot.waiting.clear()
                for turn in turns:
                    if turn.only is not None:
                        self._refuse(turn, slot)
                # The others take over.
                self._new.extendleft(turn for turn in reversed(turns) if turn.only is None)
            while slot.waiting and self._lease(slot.waiting[0], slot):
                slot.waiting.popleft()
        while self._new:
            free = [slot for slot in self._slots if slot.serving.has_room]
            if free:
                least = min(free, key=lambda s: (s.serving.under_way, s.conversations))
                if self._lease(self._new[0], least):
                    self._new.popleft()
            elif any(slot.serving.is_up for slot in self._slots):
                break
            else:
                self._refuse(self._new.popleft(), self._nearest())

    def _nearest(self) -> Slot:
        """Return the server that may come back, while none is up; else the first."""
        return next((slot for slot in self._slots if not slot.serving.failure), self._slots[0])

    def _lease(self, turn: _Turn, slot: Slot) -> bool:
        """Give a lease of one server, if it can be had or is no longer wanted."""
        if turn.gone:
            return True
        served = slot.serving.begin()
        if served is None:
            return False
        if turn.conversation and turn.only is None:
            salt = self._remember(turn.conversation, slot, served.cache_salt)
            served = served._replace(cache_salt=salt)
        turn.lease = Lease(next(self._numbers), slot.member, served)
        self._leases[turn.lease.number] = slot, served
        _settle(turn.settled)
        return True

    def _remember(self, conversation: str, slot: Slot, salt: str) -> str:
        """Note a conversation's server; return its salt there, which it keeps."""
        before, began = self._at.pop(conversation, (None, salt))
        if before is slot:
            salt = began
        if before is None and len(self._at) >= KEPT:
            _, (before, _) = self._at.popitem(last=False)
        if before is not None:
            before.conversations -= 1
        self._at[conversation] = slot, salt
        slot.conversations += 1
        return salt

    def _refuse(self, turn: _Turn, slot: Slot) -> None:
        turn.error = ServerDown(slot.serving.absence)
        _settle(turn.settled)


@dataclass(frozen=True, slots=True)
class _Only:
    """One server of a router; see :class:`Leases`."""

    router: Router
    slot: Slot

    async def take(self, conversation: str) -> Lease:
        return await self.router.take_of(self.slot, conversation)

    async def give_back(self, lease: Lease) -> bool:
        return await self.router.give_back(lease)

    async def still(self, member: Member) -> bool:
        return await self.router.still(member)

    async def available(self) -> None:
        await self.router.available()


def _settle(future: asyncio.Future[None] | None) -> None:
    """Wake whoever waits for a future, in whichever event loop that is."""
    if future is None:
        return

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
