# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""A v1 taskset: tasks with a system prompt, tools that share a state, rewards, a stop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import verifiers.v1 as vf
from their_tally_tools import Tally, TallyConfig, TallyState

__all__ = ["TallyTaskset"]


class TallyData(vf.TaskData):
    answer: int
    most: int = 50


class TallyTaskConfig(vf.TaskConfig):
    tally: TallyConfig = TallyConfig()
    bonus: float = 0.5


class TallyTask(vf.Task[TallyData, TallyState, TallyTaskConfig]):
    @classmethod
    def toolsets(cls, config: TallyTaskConfig) -> list[vf.Toolset]:
        return [Tally(config.tally)]

    async def finalize(self, trace: vf.Trace) -> None:
        trace.info["finalized"] = True

    @vf.stop
    async def full(self, trace: vf.Trace) -> bool:
        return trace.state.total >= 100

    @vf.reward(weight=0.8)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.answer) and trace.info["finalized"])

    @vf.reward(weight=0.2)
    async def tallied(self, task: TallyData, trace: vf.Trace) -> float:
        return self.config.bonus * float(trace.state.total == task.answer) + 0.5 * float(
            len(trace.tool_messages) > 0
        )

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

    @vf.metric
    async def cut(self, trace: vf.Trace) -> float:
        return float(trace.is_truncated)


class TallyTasksetConfig(vf.TasksetConfig):
    split: Literal["train", "test"] = "train"
    count: int = 3
    task: TallyTaskConfig = TallyTaskConfig()


class TallyTaskset(vf.Taskset[TallyTask, TallyTasksetConfig]):
    def load(self) -> Iterable[TallyTask]:
        start = 40 if self.config.split == "train" else 70
        for i in range(self.config.count):
            yield TallyTask(
                TallyData(
                    idx=i,
                    prompt=f"What is {start} + {i + 2}?",
                    system_prompt="Use the tally.",
                    answer=start + i + 2,
                ),
                self.config.task,
            )
