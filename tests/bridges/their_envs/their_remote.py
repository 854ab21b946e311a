# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""A v1 taskset whose tools another server has."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["RemoteTaskset"]


class Remote(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = "far"


class RemoteTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class RemoteTask(vf.Task[vf.TaskData, vf.State, RemoteTaskConfig]):
    @classmethod
    def toolsets(cls, config: RemoteTaskConfig) -> list[vf.Toolset]:
        return [Remote(config.tools)]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "5")


class RemoteConfig(vf.TasksetConfig):
    task: RemoteTaskConfig = RemoteTaskConfig()


class RemoteTaskset(vf.Taskset[RemoteTask, RemoteConfig]):
    def load(self) -> list[RemoteTask]:
        return [RemoteTask(vf.TaskData(idx=0, prompt="Add 2 and 3."), self.config.task)]
