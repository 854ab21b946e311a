"""The tasks of a folder, and the settings that apply to all of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

from vf.bridges.harbor.find import digest, read_tasks
from vf.bridges.harbor.model import TaskFolder, World
from vf.bridges.harbor.rules import Rules
from vf.bridges.harbor.specs import agent_seconds, container_of, seconds_of
from vf.bridges.harbor.trial import Trial
from vf.runtime.errors import ConfigError
from vf.sandbox.contract import Limits, Sandbox
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.sandbox.spec import SandboxSpec
from vf.traces.task import Split, Task

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
    ) -> None:
        if network not in ("none", "task"):
            raise ConfigError(f'env.args.network must be "none" or "task", got {network!r}')
        if held_out is not None and not 0 <= held_out < 1:
            raise ConfigError(f"env.args.held_out must be at least 0 and below 1, got {held_out}")
        if not agent_timeout > 0:
            raise ConfigError(f"env.args.agent_timeout must be positive, got {agent_timeout}")
        self.held_out = held_out
        self.keep_changes, self.keep_running = tuple(keep_changes), tuple(keep_running)
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
            raise ConfigError(f"no task is left for the {split} split; change held_out")
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

    def trial(self, task: Task, artifacts: Path | None) -> Trial:
        """Return a new episode of a task, whose artifacts are kept below a folder, if any."""
        folder = self.folder_of(task)
        return Trial(
            folder,
            self.rules,
            keep_changes=any(fnmatchcase(folder.id, each) for each in self.keep_changes),
            keep_running=any(fnmatchcase(folder.id, each) for each in self.keep_running),
            folder=artifacts,
        )

    def longest(self, task: Task) -> float:
        """Return how many seconds the agent has for all parts of a task."""
        parts = self.folder_of(task).parts
        return sum(agent_seconds(part, self.rules.agent_timeout) for part in parts)

    def check(self) -> None:
        """Check that the tests can have containers of their own; say what tasks do not get.

        Raises:
            ConfigError: They cannot; names the field.
        """
        for task in self.folders.values():
            for part in task.parts:
                if part.own is not None:
                    self.source.check_spec(self.spec(task, part.own, part.verifier.user))
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


async def itself(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox, for those who keep their own time in it."""
    return sandbox
