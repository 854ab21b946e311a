# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""The tools of ``their_tally``; verifiers starts this module as a server of its own."""

from __future__ import annotations

import verifiers.v1 as vf


class TallyState(vf.State):
    total: int = 0
    calls: list[str] = []


class TallyConfig(vf.ToolsetConfig):
    step: int = 1


class Tally(vf.Toolset[TallyConfig, TallyState]):
    async def setup_task(self, task: vf.TaskData) -> None:
        self.most = task.most

    @vf.tool
    async def add(self, number: int) -> str:
        """Add a number to the tally."""
        if number > self.most:
            raise ValueError(f"{number} is over {self.most}")
        self.state.total += number * self.config.step
        self.state.calls.append("add")
        return f"The tally is {self.state.total}."

    @vf.tool(name="phone")
    def call_home(self) -> str:
        """Ask somebody at home."""
        raise ConnectionError("nobody is at home")


if __name__ == "__main__":
    Tally.run()
