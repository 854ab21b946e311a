"""The environment of `cluster.py`: conversations whose tools take time, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from cluster_watch import watch_loop

import vf
from vf.environments.environment import Split


def answered(trace: vf.Trace) -> float:
    """1 if the last message holds an answer."""
    return float("Answer:" in trace.reply)


class SimulatedTools(vf.Environment):
    """Conversations in which nothing is computed.

    Args:
        tasks: In each split.
        tool_seconds: Of a call, on average.
    """

    max_turns = 4

    def __init__(self, tasks: int = 64, tool_seconds: float = 0.0) -> None:
        self.count = tasks
        self.tool_seconds = tool_seconds
        self.rubric = vf.Rubric(outcome=answered)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for number in range(self.count):
            yield vf.Task(f"{split}-{number}", f"Compute {number}.")

    async def reset(self, task: vf.Task) -> list[vf.Message]:
        await watch_loop()
        return self.first_messages(task)

    @vf.tool
    async def calculate(self, op: str, a: int, b: int) -> int:
        """Apply an operation to two integers.

        Args:
            op: The operation.
            a: Left operand.
            b: Right operand.
        """
        if self.tool_seconds:
            await asyncio.sleep(self.tool_seconds * self.rng.uniform(0.5, 1.5))
        return a + b
