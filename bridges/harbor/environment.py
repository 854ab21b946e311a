"""The environment ``harbor``: task folders, in the formats of Harbor and Terminal-Bench."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from vf.bridges.harbor.find import digest, read_tasks
from vf.bridges.harbor.model import TaskFolder, World
from vf.bridges.harbor.scoring import INFO, FolderRubric
from vf.bridges.harbor.specs import agent_seconds, container_of, seconds_of
from vf.bridges.harbor.trial import Rules, Trial
from vf.environments.environment import Environment, Split, Step
from vf.inference.models.scripted_model import Script
from vf.runtime.errors import ConfigError
from vf.sandbox.contract import Limits, Sandbox
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.sandbox.spec import SandboxSpec
from vf.tools.sandbox_tools import BashTool, FileTools
from vf.traces.messages import Message, as_messages
from vf.traces.task import Task
from vf.traces.trace import Trace

log = logging.getLogger("vf.environments.harbor")

HELD_OUT = {"eval": "eval", "held-out": "eval", "test": "eval", "train": "train"}
SPARE = 300.0  # seconds of an episode for what has no time of its own


class Folders:
    """The tasks of a folder, and what holds for all of them.

    Args:
        tasks: The folder.
        sandbox: The settings of the source of sandboxes.
        network: ``none``, or ``task``.
        agent_timeout: Seconds for an agent whose task does not say.
        held_out: Share of the tasks that are for evaluation.
        only: Patterns of ids.
        skip: Patterns of ids.
        reward_key: Which of several keys is the reward.
        host_env: Variables of this machine that tasks may take over.
        keep_changes: Patterns of ids.
        keep_running: Patterns of ids.
        artifacts: Where artifacts are kept.

    Raises:
        ConfigError: An argument cannot be used.
    """

    def __init__(
        self,
        tasks: str | Path,
        sandbox: Sandboxes,
        network: str,
        agent_timeout: float,
        held_out: float | None,
        only: Sequence[str],
        skip: Sequence[str],
        reward_key: str,
        host_env: Sequence[str],
        keep_changes: Sequence[str],
        keep_running: Sequence[str],
        artifacts: str | Path | None,
    ) -> None:
        if network not in ("none", "task"):
            raise ConfigError(f'env.args.network must be "none" or "task", got {network!r}')
        if held_out is not None and not 0 <= held_out < 1:
            raise ConfigError(f"env.args.held_out must be at least 0 and below 1, got {held_out}")
        if not agent_timeout > 0:
            raise ConfigError(f"env.args.agent_timeout must be positive, got {agent_timeout}")
        self.held_out = held_out
        self.keep_changes, self.keep_running = tuple(keep_changes), tuple(keep_running)
        self.artifacts = None if artifacts is None else Path(artifacts).expanduser().absolute()
        self.source = sandbox_source(sandbox)
        names = {field.name for field in fields(Limits)}
        given = sandbox if isinstance(sandbox, Mapping) else {}
        self._defaults = {name: value for name, value in given.items() if name in names}
        folder = Path(tasks).expanduser().absolute()
        self.folders = {task.id: task for task in read_tasks(folder, only, skip)}
        self._splits = {id: _split(task) for id, task in self.folders.items()}
        self.rules = Rules(
            network=network == "task",
            agent_timeout=agent_timeout,
            reward_key=reward_key,
            host_env=tuple(host_env),
            spec=self.spec,
            open=self._open,
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: There are none.
        """
        chosen = [task for task in self.folders.values() if self._in(task, split)]
        if not chosen and split == "train" and self.held_out is None:
            raise ConfigError(
                "nothing says which tasks are for training: write held_out = 0.2 to keep a fifth "
                "for evaluation, held_out = 0 to train on all of them, or "
                '[metadata] split = "train" in their task.toml'
            )
        if not chosen:
            raise ConfigError(f"no task is left for the {split} split; set held_out otherwise")
        for task in chosen:
            info = {"metadata": dict(task.metadata), "digest": digest(task.path)}
            yield Task(task.id, task.parts[0].instruction, info=info)

    def _in(self, task: TaskFolder, split: Split) -> bool:
        """Return whether a task is of a split: as it says itself, or else by its id."""
        if self.held_out is None:
            marked = self._splits[task.id]
            return marked == split if any(self._splits.values()) else split == "eval"
        if not self.held_out:
            return True
        drawn = hashlib.blake2b(task.id.encode(), digest_size=8).digest()
        held_out = int.from_bytes(drawn) < self.held_out * 2**64
        return held_out == (split == "eval")

    def folder_of(self, task: Task) -> TaskFolder:
        """Return a task's folder.

        Raises:
            ConfigError: It is not among these.
        """
        if task.id not in self.folders:
            raise ConfigError(f"there is no task {task.id!r} in this folder of tasks")
        return self.folders[task.id]

    def spec(self, task: TaskFolder, world: World, user: str | None) -> SandboxSpec:
        """Return what a container is made from.

        Raises:
            ConfigError: A variable that the task asks for is not there.
        """
        return container_of(
            task,
            world,
            user,
            seconds_of(task, self.rules.agent_timeout),
            host_env=self.rules.host_env,
            defaults=self._defaults,
            outside=self.rules.network,
        )

    def spec_of(self, task: Task) -> SandboxSpec:
        """Return what a task's own container is made from."""
        folder = self.folder_of(task)
        return self.spec(folder, folder.world, folder.parts[0].agent.user)

    def trial(self, task: Task) -> Trial:
        """Return a new episode of a task."""
        folder = self.folder_of(task)
        return Trial(
            folder,
            self.rules,
            put_back=not any(fnmatchcase(folder.id, each) for each in self.keep_changes),
            keep_running=any(fnmatchcase(folder.id, each) for each in self.keep_running),
            folder=self.artifacts,
        )

    def longest(self, task: Task) -> float:
        """Return how many seconds the agent has for all parts of a task."""
        parts = self.folder_of(task).parts
        return sum(agent_seconds(part, self.rules.agent_timeout) for part in parts)

    def check(self) -> None:
        """Check that the source can make what the tasks ask for; say what they do not get.

        Raises:
            ConfigError: It cannot; names the task's field.
        """
        for task in self.folders.values():
            self.source.check_spec(self.spec(task, task.world, task.parts[0].agent.user))
        asking = [
            task.id
            for task in self.folders.values()
            if any(part.agent.allow or part.verifier.allow for part in task.parts)
        ]
        if asking and not self.rules.network:
            log.warning(
                "%d of %d tasks ask for a network, %r among them, and get none (that is the "
                'format\'s default); to give them what they ask for, network = "task"',
                len(asking),
                len(self.folders),
                asking[0],
            )

    def _open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self.source.open(spec)


def _split(task: TaskFolder) -> str:
    said = task.metadata.get("split")
    return HELD_OUT.get(said, "") if isinstance(said, str) else ""


@cache
def _solve() -> str:
    """Return what a reply says for the reference solution to be run: known in this process only."""
    return f"solve:{secrets.token_hex(16)}"


async def itself(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox, for those who keep their own time in it."""
    return sandbox


class TaskFolders(Environment):
    """Task folders, for a model that works with a shell and file tools.

    Args:
        folders: The tasks.
        bash_timeout: Seconds for one command.
        max_turns: Most answers of the model in one episode.
        max_tokens: Most tokens sampled in one episode; None for no limit.

    Raises:
        ConfigError: A limit is not positive.
    """

    system_prompt = (
        "You work in a Linux container, with a shell and file tools, until the task that you are "
        "given is done. Nobody answers questions. Then say in one sentence what you did, without a "
        "tool call; your work is tested after that."
    )
    expensive_reset = True

    def __init__(
        self, folders: Folders, bash_timeout: float, max_turns: int, max_tokens: int | None
    ) -> None:
        if not bash_timeout > 0:
            raise ConfigError(f"env.args.bash_timeout must be positive, got {bash_timeout}")
        self._folders = folders
        self.source = folders.source
        self.tools = [BashTool(self.source, timeout=bash_timeout), FileTools(self.source)]
        self.max_turns, self.max_tokens = max_turns, max_tokens
        self.tool_timeout = 2 * bash_timeout + 30.0
        self.rubric = FolderRubric()

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: There are none.
        """
        return self._folders.tasks(split)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Return what the task's container is made from."""
        return self._folders.spec_of(task)

    async def check(self) -> None:
        """Look whether the engine is there, and can make what the tasks ask for.

        Raises:
            ConfigError: It is not, or cannot.
        """
        self._folders.check()
        for service in self.services:
            await service.check()

    def oracle(self, task: Task) -> Script | None:
        """Have the reference solution run, once for each part; None if a part has none."""
        parts = self._folders.folder_of(task).parts
        return None if any(part.solution is None for part in parts) else [_solve()] * len(parts)

    def episode(self, seed: int, task: Task | None = None) -> Environment:
        """Return a copy for one episode, with the time that its task takes."""
        own = super().episode(seed, task)
        if task is not None:
            # Commands may take half of it all; phases have deadlines of their own beside that.
            own.timeout = 2 * self._folders.longest(task) + SPARE
        return own

    async def reset(self, task: Task) -> list[Message]:
        """Make the task's container ready, and give the first instruction."""
        self.trial = trial = self.hold("trial", lambda: self._folders.trial(task))
        self.rubric = FolderRubric(self._verify)
        await trial.begin(await self.sandbox.use(itself))
        return self.first_messages(task)

    async def step(self, reply: Message) -> Step:
        """Run the reply's tool calls; without any, or out of time, verify what was done."""
        trial = self.trial
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
        recorded = {INFO: trial.record()}
        if trial.over:
            return Step(step.observation, terminated=not late, truncated=late, info=recorded)
        following = Message("user", trial.part.instruction)
        return Step([*as_messages(step.observation), following], info=recorded)

    async def _verify(self, trace: Trace) -> None:
        """Verify the part that was under way when the episode was cut short."""
        if not self.trial.over:
            await self.trial.verify()
        trace.info[INFO] = self.trial.record()


def harbor(
    tasks: str,
    sandbox: Sandboxes = "docker",
    network: Literal["none", "task"] = "none",
    held_out: float | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    command: Sequence[str] = (),
    folder: str | None = None,
    env: Mapping[str, str] | None = None,
    agent_timeout: float = 600.0,
    bash_timeout: float = 120.0,
    max_turns: int = 50,
    max_tokens: int | None = None,
    reward_key: str = "reward",
    host_env: Sequence[str] = (),
    keep_changes: Sequence[str] = (),
    keep_running: Sequence[str] = (),
    artifacts: str | None = None,
) -> Environment:
    """Make an environment of task folders; ``"harbor:path/to/tasks"`` is this with ``tasks``.

    Args:
        tasks: A folder that is a task, or holds tasks at any depth.
        sandbox: Where containers run; see :func:`~vf.sandbox.hosting.source.sandbox_source`. Its
            limits hold where a task says none.
        network: ``"none"``: no container reaches anything. ``"task"``: each phase of a task reaches
            what it asks for, through a proxy; what asks for nothing gets all public hosts, which is
            the format's default.
        held_out: Share of the tasks that are for evaluation, drawn by their ids; the others are for
            training. 0 uses all tasks for both. By default ``[metadata] split`` of the tasks
            decides, and if none has one, all of them are for evaluation.
        only: Patterns of the ids of tasks to use, such as ``"easy/*"``; by default all.
        skip: Patterns of the ids of tasks that are left out, unread.
        command: A program that works on the tasks inside their containers, in place of the tools;
            see :func:`vf.environments.agents.program.program` for what it is given.
        folder: The program's own files; copied to ``/opt/agent``, its ``command`` begins there.
        env: Further variables of the program.
        agent_timeout: Seconds for the agent where a task does not say; the model's answers do not
            count.
        bash_timeout: Seconds for one command of the model's.
        max_turns: Most answers of the model in one episode.
        max_tokens: Most tokens sampled in one episode; None for no limit.
        reward_key: Which key of a ``reward.json`` with several is the reward.
        host_env: Names of this machine's variables that tasks may take over by ``${NAME}``.
        keep_changes: Patterns of the ids of tasks whose point it is to change the image's own
            programs or what starts with them: these changes are not undone before the tests.
        keep_running: Patterns of the ids of tasks whose tests need what the agent left running. It
            can then act while the tests run.
        artifacts: Folder in which artifacts are kept; by default none are.

    Raises:
        ConfigError: An argument cannot be used, or a task; names file and key.
    """
    folders = Folders(
        tasks,
        sandbox,
        network,
        agent_timeout,
        held_out,
        only,
        skip,
        reward_key,
        host_env,
        keep_changes,
        keep_running,
        artifacts,
    )
    if command:
        from vf.bridges.harbor.inside import ProgramFolders

        return ProgramFolders(folders, command, folder, env, max_turns, max_tokens)
    for name, value in {"folder": folder, "env": env}.items():
        if value:
            raise ConfigError(f"env.args.{name} is for env.args.command, which is not given")
    return TaskFolders(folders, bash_timeout, max_turns, max_tokens)
