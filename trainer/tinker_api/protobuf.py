"""Protocol buffers' wire format, as far as the API's few messages use it.

Source: https://protobuf.dev/programming-guides/encoding. Fields of numbers that a reader does not
name are skipped, as the format prescribes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | memoryview  # a varint; or the bytes of anything else

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Bytes are not a message."""


def fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a message, in order.

    Raises:
        WireError: If the bytes are not a message.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == LENGTH:
            size, at = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"a field has wire type {kind}")
        if at + size > len(message):
            raise WireError("the message ends too early")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise WireError("the message ends too early")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def content(value: Value) -> memoryview:
    """Return the bytes of a field that is a string, bytes or a message.

    Raises:
        WireError: If it is a number.
    """
    if isinstance(value, int):
        raise WireError("a number is where a string or a message belongs")
    return value


def number(value: Value) -> int:
    """Return a field that is a whole number or a bool.

    Raises:
        WireError: If it is none.
    """
    if not isinstance(value, int):
        raise WireError("a whole number is missing")
    return value - 2**64 if value >= 2**63 else value


def text(value: Value) -> str:
    """Return a field that is a string.

    Raises:
        WireError: If it is none, or not UTF-8.
    """
    try:
        return bytes(content(value)).decode()
    except UnicodeDecodeError as error:
        raise WireError("a string is not UTF-8") from error


def double(value: Value) -> float:
    """Return a field that is a double.

    Raises:
        WireError: If it is none.
    """
    raw = content(value)
    if len(raw) != 8:
        raise WireError("a double is missing")
    result: float = struct.unpack("<d", raw)[0]
    return result


def whole_numbers(value: Value) -> list[int]:
    """Return a repeated field of whole numbers, packed or one of them.

    Raises:
        WireError: If it is none.
    """
    if isinstance(value, int):
        return [number(value)]
    numbers, at = [], 0
    while at < len(value):
        raw, at = _varint(value, at)
        numbers.append(number(raw))
    return numbers


def encode(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field: a whole number of at least 0, a double, a string, or bytes or a message."""
    if isinstance(value, float):
        return _bytes_of(number << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return _bytes_of(number << 3 | VARINT) + _bytes_of(value)
    raw = value.encode() if isinstance(value, str) else value
    return _bytes_of(number << 3 | LENGTH) + _bytes_of(len(raw)) + raw


def _bytes_of(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
