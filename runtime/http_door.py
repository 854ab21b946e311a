"""What every HTTP server of this library refuses: endless bodies, and web pages' requests."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

BODY_SECONDS = 30.0  # in which a client sends its whole body
LARGE = 2**16  # bytes; smaller bodies are received at once
AT_ONCE = 16  # large bodies that are received or read; the others wait
JSON = "application/json"
WITH_BODY = ("POST", "PUT")
DRAINED = 2**30  # bytes


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Refused(Exception):
    """The door is closed to a request; ``status`` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Door:
    """ASGI middleware that refuses what an honest client never sends.

    - A body of more than ``most`` bytes, or one that takes too long to come. Only a few large ones
      are in memory at a time.
    - A request of a web page: browsers name the page in ``Origin``, and cannot send JSON to
      another site without asking first. A server of this machine only also refuses other hosts'
      names, which a page may have made to lead here.

    Args:
        app: The app that answers the others.
        host: The address that the server listens on.
        most: Bytes of a body.
        kinds: The content types of bodies.
        drained: Whether a body that is too large is read and thrown away before it is refused, up
            to :data:`DRAINED` bytes: a client that only reads answers once it has sent its body
            would take the refusal for a broken connection.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str,
        most: int,
        kinds: tuple[str, ...] = (JSON,),
        drained: bool = False,
    ) -> None:
        self.app = app
        self.most = most
        self._kinds = kinds
        self._drained = drained
        self._own = is_loopback(host)
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or let the app do it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        async with AsyncExitStack() as slot:
            try:
                body = await self._body(scope, receive, slot)
            except Refused as refusal:
                await _refuse(send, refusal)
                return
            read = False

            async def again() -> Message:
                nonlocal read
                if read:  # it has read the body, and waits for the client to go away
                    await slot.aclose()
                    return await receive()
                read = True
                return {"type": "http.request", "body": body, "more_body": False}

            await self.app(scope, again, send)

    async def _body(
        self, scope: MutableMapping[str, Any], receive: Receive, slot: AsyncExitStack
    ) -> bytes:
        """Return the body; a large one takes one of the slots, which ``slot`` gives back."""
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._check(scope["method"], headers)
        if scope["method"] not in WITH_BODY:
            return b""
        announced = headers.get(b"content-length", "")
        size = int(announced) if announced.isdecimal() else self.most
        if size > self.most and not self._drained:
            raise self._too_large()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                if size > LARGE:
                    await slot.enter_async_context(self._slots)
                return await self._read(receive)
        except TimeoutError:
            text = f"the body was not there within {BODY_SECONDS:g} seconds"
            raise Refused(text, 408) from None

    def _check(self, method: str, headers: dict[bytes, str]) -> None:
        if b"origin" in headers:
            raise Refused("a web page cannot use this server (the request has an Origin)", 403)
        if self._own and not is_loopback(_name(headers.get(b"host", ""))):
            raise Refused(
                "Host: this server is for its own machine; ask it as 127.0.0.1 or localhost", 403
            )
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if method in WITH_BODY and kind not in self._kinds:
            kinds = " or ".join(self._kinds)
            raise Refused(f"Content-Type: it must be {kinds}, got {kind[:64] or 'nothing'!r}", 415)

    async def _read(self, receive: Receive) -> bytes:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused("the client went away", 499)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.most:
                parts.clear()
                if not self._drained or size > DRAINED:
                    raise self._too_large()
            if not message.get("more_body", False):
                if size > self.most:
                    raise self._too_large()
                return b"".join(parts)

    def _too_large(self) -> Refused:
        return Refused(f"the body has more than {self.most:,} bytes, the most that fit here", 413)


def _name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


async def _refuse(send: Send, refusal: Refused) -> None:
    error = {
        "message": str(refusal),
        "type": "invalid_request_error",
        "param": None,
        "code": refusal.status,
    }
    headers = [(b"content-type", JSON.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
