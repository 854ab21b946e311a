"""Frames come out as they went in, and what is none is said to be none."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf.sandbox import frames
from vf.sandbox.frames import Decoder, Frame, FrameError, encode

HEADERS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text().filter(lambda key: key != "parts"),
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
)
PARTS = st.lists(st.binary(max_size=200), max_size=4)


def decode(data: bytes, *sizes: int) -> list[Frame]:
    """Feed the data in pieces of these sizes, then the rest."""
    decoder, found, at = Decoder(), [], 0
    for size in [*sizes, len(data)]:
        found += list(decoder.feed(data[at : at + size]))
        at += size
    return found


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(HEADERS, PARTS), max_size=4), st.lists(st.integers(0, 40), max_size=20))
def test_any_frames_cut_anywhere_come_out_as_they_went_in(
    sent: list[tuple[dict[str, Any], list[bytes]]], cuts: list[int]
) -> None:
    data = b"".join(encode(header, *parts) for header, parts in sent)
    got = [
        ({k: v for k, v in h.items() if k != "parts"}, parts) for h, parts in decode(data, *cuts)
    ]
    assert got == sent


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "no frame begins"),
        (struct.pack(">II", frames.MAX_HEADER + 1, 0), "no frame begins"),
        (struct.pack(">II", 2, frames.MAX_BODY + 1), "no frame begins"),
        (struct.pack(">II", 3, 0) + b"{{{", "not JSON"),
        (struct.pack(">II", 2, 0) + b"\xff\xff", "not JSON"),
        (struct.pack(">II", 2, 0) + b"[]", "not an object"),
        (struct.pack(">II", 2, 3) + b"{}abc", "do not make up"),
    ],
)
def test_what_is_not_a_frame_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        decode(data)


@pytest.mark.parametrize("sizes", [[1], [3, 3], [-1, 4], [True, 2], ["3"], 3, None, [1.5, 1.5]])
def test_parts_that_do_not_add_up_are_refused(sizes: object) -> None:
    header = json.dumps({"parts": sizes}).encode()
    with pytest.raises(FrameError, match="do not make up"):
        decode(struct.pack(">II", len(header), 3) + header + b"abc")


def test_nothing_is_encoded_that_the_other_side_would_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_BODY", 10)
    assert decode(encode({"a": 1}, b"x" * 10))[0][1] == [b"x" * 10]
    with pytest.raises(FrameError, match="too large"):
        encode({}, b"x" * 6, b"x" * 5)


def test_half_a_frame_is_waited_for() -> None:
    whole = encode({"a": 1}, b"abc")
    decoder = Decoder()
    assert list(decoder.feed(whole[:-1])) == []
    assert list(decoder.feed(whole[-1:])) == [({"a": 1, "parts": [3]}, [b"abc"])]
