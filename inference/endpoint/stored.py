"""What a rollout keeps for its next requests: conversations behind answers, messages as read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vf.traces.messages import Message

_RECENT = 4  # conversations, of which an agent usually continues one


class ReadBefore:
    """The messages of recent requests, as they came and as they were read.

    An agent sends its whole conversation each time. To compare what has been read costs a tenth
    of reading it again. Threads may do so at once: the recent ones are replaced, never changed.
    """

    def __init__(self) -> None:
        self._recent: tuple[tuple[Sequence[Any], Sequence[Message]], ...] = ()

    def recall(self, raw: Sequence[Any]) -> list[Message]:
        """Return the messages with which a request begins, as far as they are known."""
        best: list[Message] = []
        for entry in self._recent:
            before, messages = entry
            pairs = enumerate(zip(before, raw, strict=False))
            least = min(len(before), len(raw))
            shared = next((i for i, (old, new) in pairs if old != new), least)
            if shared > len(best):
                best = list(messages[:shared])
            if shared == len(before):
                # The request takes its place.
                self._recent = tuple(other for other in self._recent if other is not entry)
                break
        return best

    def remember(self, raw: Sequence[Any], messages: Sequence[Message]) -> None:
        """Keep a request's messages."""
        self._recent = ((raw, messages), *self._recent[: _RECENT - 1])


class Stored(Mapping[str, Sequence[Message]]):
    """The conversations behind answers; each is the beginning of a list that may have grown.

    Attributes:
        read: The messages of recent requests.
    """

    def __init__(self, ends: Mapping[str, tuple[list[Message], int]]) -> None:
        self._ends = ends
        self.read = ReadBefore()

    def __getitem__(self, id: str) -> Sequence[Message]:
        messages, count = self._ends[id]
        return messages[:count]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)
