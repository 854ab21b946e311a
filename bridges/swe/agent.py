"""A user's program that works in a task's container."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from vf.bridges.swe.grading import Settings, Start, begin, judge, recorded, take
from vf.bridges.swe.rows import Instance
from vf.environments.agent import AgentEnvironment
from vf.environments.agents.attempt import Attempt, Work
from vf.environments.agents.command import Program
from vf.environments.agents.workspaces import SandboxWorkspace
from vf.inference.endpoint.address import Endpoint
from vf.runtime.errors import ConfigError
from vf.runtime.own_deadline import own_deadline
from vf.sandbox.source import SandboxSource
from vf.sandbox.spec import SandboxSpec
from vf.tools.episode import Service
from vf.traces.task import Task

_GIVEN = ".vf"  # the folder of the program's code in the working directory; no part of its patch


class SweProgram:
    """A program as an agent that repairs repositories.

    Args:
        program: The program; its sandboxes are containers.
        settings: The settings of the judgement of its patches.
        spec: A function that returns the spec of a task's sandboxes.

    Raises:
        ConfigError: If the program is to run on this machine.
    """

    home = __name__

    def __init__(
        self, program: Program, settings: Settings, spec: Callable[[Task], SandboxSpec]
    ) -> None:
        if program.source is None:
            raise ConfigError(
                "swe: a program works in the task's container; sandbox must not be none"
            )
        self.program, self.settings, self.spec = program, settings, spec
        self.source: SandboxSource = program.source

    @property
    def services(self) -> list[Service]:
        """The source of its sandboxes."""
        return self.program.services

    def check(self) -> None:
        """Check the program."""
        self.program.check()

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Return the spec of a task's sandboxes."""
        return self.spec(task)

    def attempt(self, task: Task, endpoint: Endpoint, episode: AgentEnvironment) -> _Attempt:
        """Return one attempt at a task."""
        return _Attempt(self, task, endpoint, episode.info)

    def measured(self) -> dict[str, Any]:
        """Return the settings on which results depend."""
        return {**self.program.measured(), "settings": repr(self.settings)}


class _Attempt(Attempt):
    """A program at work on one repository."""

    def __init__(
        self, agent: SweProgram, task: Task, endpoint: Endpoint, info: dict[str, Any]
    ) -> None:
        program = agent.program
        self.agent, self.instance = agent, Instance.of(task)
        self.container = _Workspace(agent, self.instance, agent.spec(task))
        work = Work(program.command, program.env, program.collect, ())
        super().__init__(work, self.container, task, endpoint, info)

    async def finish(self) -> None:
        """Judge the patch that the program has left.

        Raises:
            SandboxError: If a sandbox is lost for a reason that the program did not cause.
        """
        await super().finish()
        self.info["swe"] = await self._judged()

    async def _judged(self) -> dict[str, Any]:
        settings, start = self.agent.settings, self.container.start
        if start is None:
            return {"resolved": 0.0, "problem": "nothing was done"}
        patch, problem = await take(self.container.sandbox, start, settings)
        await self.container.close()
        if not patch:
            return {"resolved": 0.0, "problem": problem or "nothing was changed"}
        async with AsyncExitStack() as stack:
            with own_deadline():
                opened = self.agent.source.open(self.container.spec)
                sandbox = await stack.enter_async_context(opened)
            verdict = await judge(sandbox, self.instance, patch, settings)
        return recorded(verdict, patch)


class _Workspace(SandboxWorkspace):
    """The task's container, made ready."""

    def __init__(self, agent: SweProgram, instance: Instance, spec: SandboxSpec) -> None:
        program = agent.program
        super().__init__(agent.source, program.folder, program.scripts, spec)
        self.agent, self.instance, self.spec = agent, instance, spec
        self.start: Start | None = None

    async def open(self, endpoint: Endpoint) -> Endpoint:
        """Open it, with the program's code in it, and record the state of the repository."""
        seen = await super().open(endpoint)
        start = await begin(self.sandbox, self.instance, self.agent.settings)
        self.start = Start(start.tree, (*start.untracked, _GIVEN))
        return seen
