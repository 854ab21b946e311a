"""Requests under way: each has an id by which its result is asked for, as often as need be."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from vf.runtime.errors import VfError
from vf.runtime.http_door import Refused

log = logging.getLogger(__name__)

KEPT_SECONDS = 600.0  # for which a result can be asked for
AGAIN_SECONDS = 60.0  # for which it can be asked for again


class Result(Protocol):
    """What a request came to."""

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        ...

    def protobuf(self) -> bytes | None:
        """Return it as a protocol buffer; None if it has no such form."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A result that is JSON."""

    body: dict[str, Any]

    def json(self) -> dict[str, Any]:
        """Return it."""
        return self.body

    def protobuf(self) -> None:
        """Return None: it has no such form."""


def failure(error: BaseException) -> Plain:
    """Return an error as a result; those that are the caller's fault are marked so."""
    user = isinstance(error, VfError | Refused)
    if not user:
        log.error("a request failed", exc_info=error)
    text = str(error) if user else f"{type(error).__name__}: {error}"
    return Plain({"error": text, "category": "user" if user else "server"})


@dataclass(slots=True)
class _Entry:
    task: asyncio.Task[Result]
    session: str
    cancellable: bool
    drop_at: float | None = None  # in monotonic time, once it has ended


class Futures:
    """The requests of all sessions, on one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def start(
        self,
        request_id: str,
        session: str,
        work: Coroutine[Any, Any, Result],
        *,
        cancellable: bool = False,
    ) -> None:
        """Run a request; what it raises becomes its result.

        Args:
            request_id: An id that no other request has.
            session: The session that it belongs to.
            work: The request.
            cancellable: Whether a client may cancel it.
        """
        self._drop_old()
        entry = _Entry(asyncio.create_task(_settled(work)), session, cancellable)
        self._entries[request_id] = entry

        def done(_: object) -> None:
            entry.drop_at = time.monotonic() + KEPT_SECONDS

        entry.task.add_done_callback(done)

    async def result(self, request_id: str, seconds: float) -> Result | None:
        """Return a request's result, or None if it has none after so many seconds.

        Raises:
            Refused: If there is no such request.
        """
        entry = self._entries.get(request_id)
        if entry is None:
            raise Refused(
                f"request_id {request_id[:200]!r} is unknown: its session ended, the server was "
                f"restarted, or the result is older than {KEPT_SECONDS:g} seconds",
                404,
            )
        await asyncio.wait([entry.task], timeout=seconds)
        if not entry.task.done():
            return None
        entry.drop_at = time.monotonic() + AGAIN_SECONDS
        if entry.task.cancelled():
            return Plain({"error": "the request was cancelled", "category": "user"})
        return entry.task.result()

    def cancel(self, request_id: str) -> None:
        """Stop a request; nothing happens if it has ended, is unknown, or must not be cancelled."""
        entry = self._entries.get(request_id)
        if entry is not None and entry.cancellable:
            entry.task.cancel()

    def end_session(self, session: str) -> None:
        """Stop and forget all requests of a session."""
        for request_id, entry in [*self._entries.items()]:
            if entry.session == session:
                entry.task.cancel()
                del self._entries[request_id]

    def _drop_old(self) -> None:
        now = time.monotonic()
        old = [
            request_id
            for request_id, entry in self._entries.items()
            if entry.drop_at is not None and entry.drop_at < now
        ]
        for request_id in old:
            del self._entries[request_id]


async def _settled(work: Awaitable[Result]) -> Result:
    try:
        return await work
    except Exception as error:
        return failure(error)
