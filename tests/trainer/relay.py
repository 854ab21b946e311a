"""An environment whose episodes need their sandbox in each turn, on engines that may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vf
from vf.environments.environment import Split
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.hosting.source import sandbox_source
from vf.tools.episode_sandbox import EpisodeSandbox

TURNS = 3
SMALL = {"memory": 192 * 2**20, "workspace": 32 * 2**20, "tmp": 16 * 2**20, "lifetime": 300}


class Relay(vf.Environment):
    """Say something in three turns; a file in the sandbox holds all of it.

    Args:
        hosts: Where sandboxes are made.
        doomed: The engine's among them that is lost during the run.
        used: A file that is made when an episode uses that engine the second time.
        tasks: How many there are.
        **sandbox: More settings of the sandbox.
    """

    max_turns = TURNS

    def __init__(
        self, hosts: list[str], doomed: str, used: str, tasks: int = 8, **sandbox: Any
    ) -> None:
        self.source = sandbox_source({"hosts": hosts, "pool": 2, **SMALL, **sandbox})
        self.tools = [vf.PythonTool(self.source)]
        self.rubric = vf.Rubric(outcome=lambda trace: trace.info["share"])
        self.doomed, self.used, self.count = doomed, Path(used), tasks

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(self.count):
            yield vf.Task(f"{split}-{index}", f"Say {index}.")

    def oracle(self, task: vf.Task) -> list[str]:
        return ["123"] * TURNS

    def reset(self, task: vf.Task) -> list[vf.Message]:
        self.said = ""
        self.turn = 0
        return self.first_messages(task)

    async def step(self, reply: vf.Message) -> vf.Step:
        self.turn += 1
        self.said += reply.content

        async def keep(sandbox: Sandbox) -> ExecResult:
            assert isinstance(sandbox, DockerSandbox)
            if self.turn > 1 and sandbox._engine.address.url == self.doomed:
                await asyncio.to_thread(self.used.touch)
            return await sandbox.exec(
                ["sh", "-c", "cat >> said; sleep 0.2; cat said"], input=reply.content
            )

        result = await EpisodeSandbox.of(self, self.source).use(keep)
        assert result.ok, result
        assert result.stdout == self.said, "the sandbox is not the one of the turns before"
        share = sum(c.isdigit() for c in self.said) / max(1, len(self.said))
        return vf.Step([vf.Message("user", "Go on.")], info={"share": share})
