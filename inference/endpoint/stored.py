"""The conversations behind the answers that a rollout has had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vf.traces.messages import Message


class Stored(Mapping[str, Sequence[Message]]):
    """The conversations behind answers; each is the beginning of a list that may have grown."""

    def __init__(self, ends: Mapping[str, tuple[list[Message], int]]) -> None:
        self._ends = ends

    def __getitem__(self, id: str) -> Sequence[Message]:
        messages, count = self._ends[id]
        return messages[:count]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)
