"""A program at work on one task: its inputs, and the record of its results."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vf.environments.agents import placeholders
from vf.environments.agents.process import Output
from vf.environments.agents.workspaces import Workspace
from vf.inference.endpoint.address import Endpoint
from vf.traces.messages import writable
from vf.traces.task import Task

log = logging.getLogger(__name__)

_LAST_LINES = 3  # of what a program complained, in the message about its crash


class ProgramFailed(Exception):
    """A program ended with an exit code that is not 0."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an attempt runs.

    Attributes:
        command: Program and arguments, with placeholders.
        env: Further variables.
        collect: Patterns of the files that are recorded.
        score_command: A second program, or nothing.
    """

    command: Sequence[str]
    env: dict[str, str]
    collect: Sequence[str]
    score_command: Sequence[str]


class Attempt:
    """A program at work on one task; see :class:`vf.environments.agent.Attempt`."""

    def __init__(
        self, work: Work, workspace: Workspace, task: Task, endpoint: Endpoint, info: dict[str, Any]
    ) -> None:
        self.work, self.workspace, self.task, self.info = work, workspace, task, info
        self.endpoint = endpoint
        self.stdout = ""
        self.opened = False

    async def run(self) -> str:
        """Run the program, and return its standard output.

        Raises:
            ProgramFailed: If its exit code is not 0.
        """
        self.endpoint = await self.workspace.open(self.endpoint)
        self.opened = True
        file = await self.workspace.write("task.json", self._described())
        values = placeholders.values(self.task, self.endpoint, file)
        command = placeholders.fill(self.work.command, values)
        environ = {**self.endpoint.environ(), "VF_TASK": file, **self.work.env}
        output, code = Output(), None
        try:
            code = await self.workspace.run(command, environ, output)
        finally:
            self.stdout = writable(output.stdout.text())
            self.info["program"] = self._record(output, code)
            self.info["output"] = self.stdout  # also of one that was stopped
        if code:
            raise ProgramFailed(f"exit code {code}{_complaint(output.stderr.text())}")
        return self.stdout

    async def finish(self) -> None:
        """Read the files that the program left, and run the command that scores them.

        If that command fails, no reward is reported, and ``info["program"]["score_command"]`` says
        why: what the program has left may have brought it about.
        """
        if not self.opened:
            return
        if self.work.collect:
            self.info["files"] = await self.workspace.files(self.work.collect)
        if self.work.score_command:
            await self._score()

    async def close(self) -> None:
        """Remove the workspace."""
        await self.workspace.close()

    async def _score(self) -> None:
        output, problem = Output(), "it took too long"
        try:
            code = await self._scored(output)
            problem = f"exit code {code}{_complaint(output.stderr.text())}" if code else ""
            if self.workspace.lost:
                problem = f"it could not run: {self.workspace.lost}"
        except OSError as error:
            problem = f"it could not run: {error}"
        finally:
            if problem:
                self.info.setdefault("program", {})["score_command"] = problem
                _warn_once(problem)

    async def _scored(self, output: Output) -> int:
        await self.workspace.stop()
        task = await self.workspace.write("task.json", self._described(answer=True))
        printed = await self.workspace.write("output.txt", self.stdout)
        values = placeholders.values(self.task, self.endpoint, task)
        command = await self.workspace.own_files(self.work.score_command)
        environ = {
            "VF_TASK": task,
            "VF_OUTPUT": printed,
            "VF_REWARD_URL": self.endpoint.reward_url,
            "VF_REWARD_KEY": self.endpoint.reward_key,
            "HOME": os.path.dirname(printed),  # where the program has left nothing
            **self.work.env,
        }
        return await self.workspace.run(placeholders.fill(command, values), environ, output)

    def _described(self, *, answer: bool = False) -> str:
        task = self.task
        described = {"id": task.id, "prompt": task.prompt, "info": task.info}
        return json.dumps(described | {"answer": task.answer} if answer else described)

    def _record(self, output: Output, code: int | None) -> dict[str, Any]:
        record: dict[str, Any] = {"exit_code": code, "stderr": writable(output.stderr.text())}
        if output.stdout.size > output.stdout.most:
            record["stdout_bytes"] = output.stdout.size
        return record


@cache
def _warn_once(problem: str) -> None:
    log.warning("env.args.score_command: %s; such a rollout has no reported reward", problem)


def _complaint(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return f", after: {' | '.join(lines[-_LAST_LINES:])}" if lines else ""
