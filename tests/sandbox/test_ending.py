"""What an engine remembers, and what is made of a container that it has forgotten."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tests.sandbox.conftest import small_profile
from vf.runtime.errors import HostLost
from vf.sandbox.container.docker_engine import Engine, EngineRefused
from vf.sandbox.container.docker_sandbox import DockerSandbox
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


def test_a_removal_that_an_engine_fails_at_for_a_moment_is_repeated(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Podman does where a container ends while it is being stopped."""
    call, refusals = engine.call, [500, 409, 500]

    async def fails_at_first(method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "remove_container" and refusals:
            raise EngineRefused("container state improper: stopped", refusals.pop())
        return await call(method, *args, **kwargs)

    async def run() -> None:
        async with await DockerSandbox.create(engine, small_profile()) as sandbox:
            name = sandbox.name
            monkeypatch.setattr(engine, "call", fails_at_first)
        assert refusals == []
        with pytest.raises(EngineRefused):
            await engine.call("inspect_container", name)

    asyncio.run(run())
