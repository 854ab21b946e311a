"""A program that works on task folders inside their containers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from vf.bridges.harbor import container
from vf.bridges.harbor.folders import SPARE, Folders, itself
from vf.bridges.harbor.scoring import INFO, FolderRubric
from vf.bridges.harbor.trial import Trial
from vf.environments.agent import AgentEnvironment
from vf.environments.agents import placeholders
from vf.environments.agents.command import Program
from vf.inference.endpoint.address import Endpoint
from vf.runtime.errors import ConfigError
from vf.runtime.own_deadline import own_deadline
from vf.runtime.workers import in_thread
from vf.sandbox.source import SandboxSource
from vf.sandbox.spec import SandboxSpec
from vf.tools.episode_sandbox import EpisodeSandbox
from vf.traces.messages import writable
from vf.traces.task import Task
from vf.traces.trace import Trace

FOLDER = "/opt/agent"
INPUT = "/opt/vf"  # the folder of the program's input
MAX_OUTPUT = 100_000  # characters of what a program prints that are recorded
_TIMEOUT = 7 * 24 * 3600.0  # seconds: the caller has a clock that pauses while the model answers


def program_folders(
    folders: Folders,
    command: Sequence[str],
    folder: str | None,
    env: Mapping[str, str] | None,
    max_turns: int,
    max_tokens: int | None,
) -> AgentEnvironment:
    """Return task folders as an environment, for a program inside the container.

    Args:
        folders: Tasks of the environment.
        command: Command of the program; see :func:`~vf.environments.agents.program.program`.
        folder: Folder of the program's own files.
        env: Additional environment variables.
        max_turns: Maximum answers of the model in one episode.
        max_tokens: Maximum tokens sampled in one episode; None for no limit.

    Raises:
        ConfigError: If an argument cannot be used.
    """
    program = Program(command, sandbox=folders.source, folder=folder, env=env)
    return AgentEnvironment(
        Inside(folders, program),
        tasks=folders.tasks,
        rubric=FolderRubric(),
        max_turns=max_turns,
        max_tokens=max_tokens,
        timeout=lambda task: folders.longest(task) + SPARE,
    )


class Inside:
    """A program as an agent; see :class:`vf.environments.agent.Agent`."""

    home = __name__

    def __init__(self, folders: Folders, program: Program) -> None:
        self._folders, self._program = folders, program
        self.services = program.services

    def check(self) -> None:
        """Say what the tasks do not get; the program is the image's, or comes along.

        Raises:
            ConfigError: If a task's tests cannot have the container that they ask for.
        """
        self._folders.check()

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Return what a task's container is made from."""
        return self._folders.spec_of(task)

    def attempt(self, task: Task, endpoint: Endpoint, episode: AgentEnvironment) -> Attempt:
        """Return one attempt at a task."""
        source, trial = self._folders.source, self._folders.trial(task, episode.artifacts)
        return Attempt(self._program, source, trial, task, endpoint, episode)

    def measured(self) -> dict[str, Any]:
        """Return the command, and digests of the files that it consists of."""
        return self._program.measured()


class Attempt:
    """A program at work on one task; see :class:`vf.environments.agent.Attempt`."""

    def __init__(
        self,
        program: Program,
        source: SandboxSource,
        trial: Trial,
        task: Task,
        endpoint: Endpoint,
        episode: AgentEnvironment,
    ) -> None:
        self._program, self._trial, self._task = program, trial, task
        self._source = source
        self._endpoint, self._episode = endpoint, episode
        episode.rubric = FolderRubric(self._verify)

    async def run(self) -> str:
        """Make the container ready, and run the program on each part of the task."""
        trial, episode = self._trial, self._episode
        with own_deadline():
            shared = EpisodeSandbox.of(episode, self._source)
            sandbox = await shared.use(itself)
            await trial.begin(sandbox, shared.close)
            await self._copy_program()
            url = urlsplit(self._endpoint.url)
            port = await sandbox.forward((url.hostname or "", url.port or 80))
        endpoint = replace(self._endpoint, url=url._replace(netloc=f"127.0.0.1:{port}").geturl())
        while True:
            output = await self._run_program(endpoint)
            await trial.verify()
            if trial.over:
                return output

    async def _copy_program(self) -> None:
        """Copy the program's own files in."""
        sandbox, program = self._trial.sandbox, self._program
        folders = f"{FOLDER} {INPUT}"
        await container.as_root(sandbox, f"mkdir -p {folders} && chmod 777 {folders}")
        try:
            if program.folder is not None:
                await sandbox.upload(program.folder, FOLDER)
            for name, path in program.scripts.items():
                await sandbox.write_file(f"{FOLDER}/{name}", await in_thread(path.read_bytes))
        except (OSError, ValueError) as error:
            raise ConfigError(f"the agent's files cannot be copied in: {error}") from error

    async def _run_program(self, endpoint: Endpoint) -> str:
        trial, part = self._trial, self._trial.part
        task = Task(self._task.id, part.instruction, info=self._task.info)
        file = f"{INPUT}/task.json"
        task_fields = {"id": task.id, "prompt": task.prompt, "info": task.info}
        await trial.sandbox.write_file(file, json.dumps(task_fields))
        command = placeholders.fill(
            self._program.command, placeholders.values(task, endpoint, file)
        )
        command = [f"{FOLDER}/{item}" if self._is_own(item) else item for item in command]
        env = {**endpoint.environ(), "VF_TASK": file, "VF_AGENT": FOLDER, **self._program.env}
        result = await trial.sandbox.exec(command, env=env, timeout=_TIMEOUT, max_output=MAX_OUTPUT)
        output = writable(result.stdout)
        record = {"exit_code": result.returncode, "stderr": writable(result.stderr)}
        self._episode.info["program"] = record
        self._episode.info["output"] = output
        return output

    def _is_own(self, item: str) -> bool:
        """Return whether an argument names one of the program's own files."""
        folder = self._program.folder
        named = not item.startswith("/") and folder is not None and (folder / item).is_file()
        return named or item in self._program.scripts

    async def finish(self) -> None:
        """Leave it to the rubric: what is verified then has a deadline of its own."""

    async def _verify(self, trace: Trace) -> None:
        if not self._trial.over:
            await self._trial.verify()
        trace.info[INFO] = self._trial.record()

    async def close(self) -> None:
        """Nothing is left but the container, which the episode closes."""
        await self._trial.close()
