"""Parses the head of a request to a proxy, by RFC 9110 and RFC 9112."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from vf.sandbox.services.allow import Target, parse_target

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[^\0\r\n]*")
# Headers of this connection alone (RFC 9110, 7.6.1), and the host, which is in the URL.
_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"host"}
_HOP |= {b"proxy-authenticate", b"upgrade"}


class BadRequest(Exception):
    """A request cannot be served; the message says why."""

    def __init__(self, why: str, status: str = "400 Bad Request") -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a proxy.

    Attributes:
        target: The target of the connection.
        head: The bytes to send there first; empty for ``CONNECT``.
    """

    target: Target
    head: bytes = b""


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read a request up to its body.

    Raises:
        BadRequest: If it is not a proxy request, or its head is longer than the reader's limit.
        asyncio.IncompleteReadError: If it ended in the middle.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        too_long = "the head of the request is too long"
        raise BadRequest(too_long, "431 Request Header Fields Too Large") from None
    return parse_request(head)


def parse_request(head: bytes) -> Request:
    """Parse the head of a request.

    Raises:
        BadRequest: If it is not a proxy request.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = _LINE.fullmatch(first)
    if parts is None or not all(_HEADER.fullmatch(line) for line in lines):
        raise BadRequest("this is no HTTP/1.1 request")
    method, url, version = parts.groups()
    if method == b"CONNECT":
        return Request(_target(url, None))
    if not url[:7].lower() == b"http://":
        raise BadRequest(
            "this is a proxy: it takes CONNECT and http:// URLs, not "
            + repr(url[:80].decode("latin-1"))
        )
    end = re.compile(rb"[/?#]|$").search(url, 7)
    assert end is not None
    authority, rest = url[7 : end.start()].rpartition(b"@")[2], url[end.start() :].split(b"#")[0]
    target = _target(authority, 80)
    hop = _HOP | _named_by_connection(lines)
    kept = [line for line in lines if line.split(b":", 1)[0].lower() not in hop]
    path = rest if rest.startswith(b"/") else b"/" + rest
    # One request for each connection: the other end closes after its answer.
    own = [b"Host: " + authority, b"Connection: close"]
    line = method + b" " + path + b" HTTP/1." + version
    return Request(target, b"\r\n".join([line, *own, *kept, b"", b""]))


def _named_by_connection(lines: list[bytes]) -> set[bytes]:
    """Return the headers that the sender restricts to this connection."""
    named = set[bytes]()
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"connection":
            named |= {header.strip().lower() for header in value.split(b",")}
    return named - {b"content-length", b"transfer-encoding"}  # without them it has another body


def _target(authority: bytes, default: int | None) -> Target:
    text = authority.decode("latin-1")
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]{0,5}))?", text)
    port = (match[2] if match else None) or default
    if match is None or not match[1] or port is None:
        raise BadRequest(f"{text[:80]!r} is no host with a port")
    try:
        return parse_target(match[1], int(port))
    except ValueError as error:
        raise BadRequest(str(error)) from None
