# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""v1 tasks that need what only verifiers' own rollouts have, by kind; and an endless one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

__all__ = ["HooksTaskset"]


class Plain(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def long_enough(self, trace: vf.Trace) -> float:
        return len(trace.last_reply) / 4


class Boxed(Plain):
    NEEDS_CONTAINER = True


class Watched(Plain):
    @vf.intercept
    async def redact(self, request: vf.Request) -> vf.Request | None:
        return None


class Stopped(Plain):
    @vf.stop
    async def said_stop(self, response: vf.Response) -> bool:
        return response.message.content == "stop"


class Raising(Plain):
    @vf.reward
    async def broken(self, trace: vf.Trace) -> float:
        raise KeyError("no such key")


class Unpaid(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class Elsewhere(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    def look(self) -> str:
        """Look."""
        return "nothing"


class Remote(Plain):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Elsewhere(vf.ToolsetConfig(runtime={"type": "docker"}))]


KINDS: dict[str, Any] = {
    each.__name__.lower(): each
    for each in (Plain, Boxed, Watched, Stopped, Raising, Unpaid, Remote)
}


class HooksConfig(vf.TasksetConfig):
    kind: str = "plain"
    data: dict[str, Any] = {}


class HooksTaskset(vf.Taskset[Plain, HooksConfig]):
    INFINITE = True

    def load(self) -> Iterable[Plain]:
        cls = KINDS[self.config.kind]
        for i in itertools.count():
            data = {"idx": i, "prompt": "Say something.", **self.config.data}
            yield cls(vf.TaskData.model_validate(data), self.config.task)
