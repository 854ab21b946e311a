"""Task folders as an environment, for a model that works with tools."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import cache

from vf.bridges.harbor.folders import SPARE, Folders, itself
from vf.bridges.harbor.scoring import INFO, FolderRubric
from vf.environments.environment import Environment, Split, Step
from vf.inference.models.scripted_model import Script
from vf.runtime.errors import ConfigError
from vf.sandbox.spec import SandboxSpec
from vf.tools.sandbox_tools import BashTool, FileTools
from vf.traces.messages import Message, as_messages
from vf.traces.task import Task
from vf.traces.trace import Trace


@cache
def _solve() -> str:
    """Return what a reply says for the reference solution to be run: known in this process only."""
    return f"solve:{secrets.token_hex(16)}"


class TaskFolders(Environment):
    """Task folders, for a model that works with a shell and file tools.

    Args:
        folders: Tasks of the environment.
        tools: Names of tools: ``bash``, ``files`` or both.
        bash_timeout: Maximum seconds for one command.
        max_turns: Maximum answers of the model in one episode.
        max_tokens: Maximum tokens sampled in one episode; None for no limit.

    Raises:
        ConfigError: If a limit is not positive, or a tool is unknown.
    """

    system_prompt = (
        "You work in a Linux container, with the tools that you have, until the task that you are "
        "given is done. Nobody answers questions. Then say in one sentence what you did, without a "
        "tool call; your work is tested after that."
    )
    expensive_reset = True

    def __init__(
        self,
        folders: Folders,
        tools: Sequence[str],
        bash_timeout: float,
        max_turns: int,
        max_tokens: int | None,
    ) -> None:
        if not bash_timeout > 0:
            raise ConfigError(f"env.args.bash_timeout must be positive, got {bash_timeout}")
        self._folders = folders
        self.source = folders.source
        tools_by_name: dict[str, BashTool | FileTools] = {
            "bash": BashTool(self.source, timeout=bash_timeout),
            "files": FileTools(self.source),
        }
        for name in tools or [""]:
            if name not in tools_by_name:
                raise ConfigError(
                    f'env.args.tools must be ["bash"], ["files"] or both, got {list(tools)!r}'
                )
        self.tools = [tools_by_name[name] for name in tools]
        self.max_turns, self.max_tokens = max_turns, max_tokens
        self.tool_timeout = 2 * bash_timeout + 30.0
        self.rubric = FolderRubric()

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: If the split has no tasks.
        """
        return self._folders.tasks(split)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Return what the task's container is made from."""
        return self._folders.spec_of(task)

    async def check(self) -> None:
        """Look whether the engine is there, and can make what the tasks ask for.

        Raises:
            ConfigError: If the engine is not available, or cannot make such containers.
        """
        self._folders.check()
        for service in self.services:
            await service.check()

    def oracle(self, task: Task) -> Script | None:
        """Have the reference solution run, once for each part; None if a part has none."""
        parts = self._folders.folder_of(task).parts
        return None if any(part.solution is None for part in parts) else [_solve()] * len(parts)

    def timeout_of(self, task: Task) -> float:
        """Return how long an episode may take, except for what has a deadline of its own.

        Commands may take half of it: so much does the agent have.
        """
        return max(self.timeout, 2 * self._folders.longest(task) + SPARE)

    async def reset(self, task: Task) -> list[Message]:
        """Make the task's container ready, and give the first instruction."""
        self.trial = trial = self.hold("trial", lambda: self._folders.trial(task, self.artifacts))
        trial.used = False
        self.rubric = FolderRubric(self._verify)
        await trial.begin(await self.sandbox.use(itself), self.sandbox.close)
        return self.first_messages(task)

    async def step(self, reply: Message) -> Step:
        """Run the reply's tool calls; without any, or out of time, verify what was done."""
        trial = self.trial
        trial.used |= bool(reply.tool_calls)
        with trial.timed():
            if reply.content == _solve():
                await trial.solve()
                step = Step(terminated=True)
            else:
                step = await self.run_tools(reply)
        if not (step.terminated or trial.late):
            return step  # after the last turn, too: what was done by then is verified when scored
        late = not step.terminated
        await trial.verify()
        info = {INFO: trial.record()}
        if trial.over:
            return Step(step.observation, terminated=not late, truncated=late, info=info)
        next_instruction = Message("user", trial.part.instruction)
        return Step([*as_messages(step.observation), next_instruction], info=info)

    async def _verify(self, trace: Trace) -> None:
        """Verify the part that was under way when the episode was cut short."""
        if not self.trial.over:
            await self.trial.verify()
        trace.info[INFO] = self.trial.record()
