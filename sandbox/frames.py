"""Frames: the protocol of the client and the supervisor in the sandbox, over one byte stream.

A frame is two big-endian 32-bit lengths, a header (a JSON object) and a body. The body is the
concatenation of binary parts whose lengths the header lists under ``parts``.

This file runs on both sides: the client sends its source to the supervisor when it starts.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Iterator, List, Tuple  # noqa: UP035  (Python 3.9 runs this too)

MAX_HEADER = 32 * 2**20
MAX_BODY = 128 * 2**20
# Of a sandbox's tunnel, for both sides.
MOST_CONNECTIONS = 256
WINDOW = 2**17  # bytes of a connection that one side may send before the other acknowledges some
# Of a program whose output is sent while it runs: bytes on their way, or not read by the client.
OUTPUT_WINDOW = 2**18
# The supervisor's exit code if its connection has ended: nothing inside can cause that.
CONNECTION_ENDED = 75
_LENGTHS = struct.Struct(">II")

Frame = Tuple[Dict[str, Any], List[bytes]]  # noqa: UP006


class FrameError(Exception):
    """The bytes are not a frame: the other side is wrong, or has a fault."""


def encode(header: dict[str, Any], *parts: bytes) -> bytes:
    """Return the frame of a header and its parts.

    Raises:
        FrameError: If it is larger than the other side would accept.
    """
    if parts:
        header = {**header, "parts": [len(part) for part in parts]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    size = sum(map(len, parts))
    if len(text) > MAX_HEADER or size > MAX_BODY:
        raise FrameError(f"a frame of {len(text)} + {size} bytes is too large")
    return b"".join((_LENGTHS.pack(len(text), size), text, *parts))


class Decoder:
    """Cuts a stream of bytes into frames, in whatever pieces it arrives."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next bytes; yield every frame that they complete.

        Raises:
            FrameError: If they are not a frame.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(buffer)
            if head > MAX_HEADER or body > MAX_BODY:
                raise FrameError(f"no frame begins with {bytes(buffer[:16])!r}")
            end = _LENGTHS.size + head + body
            if len(buffer) < end:
                return
            with memoryview(buffer) as view:
                text = bytes(view[_LENGTHS.size : _LENGTHS.size + head])
                rest = bytes(view[_LENGTHS.size + head : end])
            del buffer[:end]
            header = _header(text)
            yield header, _split(header, rest)


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as exc:
        raise FrameError(f"a header is not JSON: {text[:80]!r}") from exc
    if not isinstance(header, dict):
        raise FrameError(f"a header is not an object: {text[:80]!r}")
    return header


def _split(header: dict[str, Any], body: bytes) -> list[bytes]:
    sizes = header.get("parts", [])
    whole = isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in sizes)
    if not whole or sum(sizes) != len(body):
        raise FrameError(f"the parts {str(sizes)[:80]} do not make up a body of {len(body)} bytes")
    parts, start = [], 0
    for size in sizes:
        parts.append(body[start : start + size])
        start += size
    return parts
