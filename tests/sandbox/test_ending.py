"""What an engine remembers, and what is made of a container that it has forgotten."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from vf.runtime.errors import HostLost
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.ending import ended_from_outside
from vf.sandbox.container.features import Features

KEPT = 8


class BusyEngine:
    """Remembers a few events; some more come between any two of its answers.

    Args:
        events: How many there were since its start.
        more: How many come between two answers.
    """

    def __init__(self, events: int, more: int) -> None:
        self.lost = False
        self._now, self._more = 0, more
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._work(events)

    def _work(self, events: int) -> None:
        for _ in range(events):
            self._now += 1
            self._events.append({"Action": "start", "time": self._now})

    async def features(self) -> Features:
        return Features(memory=KEPT)

    async def call(self, what: str, *args: Any, **kwargs: Any) -> Any:
        self._work(self._more)
        if what == "inspect_container":
            return {"State": {"Running": False}}
        if what == "info":
            return {"SystemTime": datetime.fromtimestamp(self._now, UTC).isoformat()}
        assert what == "events"
        if kwargs["filters"]:
            return []  # it has forgotten the container
        return [event for event in self._events if event["time"] <= float(kwargs["until"])]


@pytest.mark.parametrize("more", [0, 1, 2, 5, KEPT - 1])
def test_an_engine_that_forgets_has_not_started_again(more: int) -> None:
    """A listing leaves out what came after it was asked for, so it is shorter than the memory."""
    engine = cast(Engine, BusyEngine(100, more))
    assert asyncio.run(ended_from_outside(engine, "box", cut=True)) is None


def test_an_engine_that_remembers_all_since_its_start_has_started_again() -> None:
    engine = cast(Engine, BusyEngine(2, 0))
    with pytest.raises(HostLost, match="started again since"):
        asyncio.run(ended_from_outside(engine, "box", cut=True))
