"""Messages that an agent sends again are not read again, whatever conversation they are of."""

from __future__ import annotations

from typing import Any

from vf.inference.endpoint.chat import read_messages
from vf.inference.endpoint.stored import ReadBefore


def said(*texts: str) -> list[dict[str, Any]]:
    """Return raw messages, new ones each time."""
    return [{"role": "user", "content": text} for text in texts]


def test_the_beginning_that_is_known_is_not_read_again() -> None:
    before = ReadBefore()
    first = read_messages(said("a", "b"), before)
    second = read_messages(said("a", "b", "c"), before)
    assert [message.content for message in second] == ["a", "b", "c"]
    assert all(old is new for old, new in zip(first, second, strict=False))


def test_what_has_changed_is_read_again() -> None:
    before = ReadBefore()
    read_messages(said("a", "b", "c"), before)
    again = read_messages(said("a", "x", "c"), before)
    assert [message.content for message in again] == ["a", "x", "c"]
    assert [message.content for message in read_messages(said("a"), before)] == ["a"]


def test_conversations_that_take_turns_are_both_known() -> None:
    before = ReadBefore()
    one, other = read_messages(said("a"), before), read_messages(said("b"), before)
    for _ in range(3):
        assert read_messages(said("a", "c"), before)[0] is one[0]
        assert read_messages(said("b", "c"), before)[0] is other[0]
