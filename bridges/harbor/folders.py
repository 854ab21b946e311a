"""The tasks of a folder, and the settings that apply to all of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
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
        tasks: Folder of tasks.
        sandbox: Settings of the source of sandboxes.
        network: ``none``, or ``task``.
        agent_timeout: Seconds for the agent if a task does not set them.
        held_out: Share of the tasks that are for evaluation.
        only: Patterns of ids to use.
        skip: Patterns of ids to skip.
        reward_key: Key of the reward where there are several.
        host_env: Names of this machine's environment variables that tasks may use.
        keep_changes: Patterns of ids whose tests run in the agent's container as it is.
        keep_running: Patterns of ids whose tests run beside what the agent left running.

    Raises:
        ConfigError: If an argument cannot be used.
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
        limit_names = {field.name for field in fields(Limits)}
        sandbox_args = sandbox if isinstance(sandbox, Mapping) else {}
        self._defaults = {
            name: value for name, value in sandbox_args.items() if name in limit_names
        }
        folder = Path(tasks).expanduser().absolute()
        self.folders = {task.id: task for task in read_tasks(folder, only, skip)}
        self._splits = {id: _split(task) for id, task in self.folders.items()}
        self.rules = Rules(
            network=network == "task",
            agent_timeout=agent_timeout,
            reward_key=reward_key,
            host_env=tuple(host_env),
            spec=self.spec,
            open=self.source.open,
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: If the split has no tasks.
        """
        selected = [task for task in self.folders.values() if self._in(task, split)]
        if not selected and split == "train" and self.held_out is None:
            raise ConfigError(
                "nothing says which tasks are for training: write held_out = 0.2 to keep a fifth "
                "for evaluation, held_out = 0 to train on all of them, or "
                '[metadata] split = "train" in their task.toml'
            )
        if not selected:
            raise ConfigError(f"no task is left for the {split} split; change held_out")
        for task in selected:
            info = {"metadata": dict(task.metadata), "digest": digest(task.path)}
            yield Task(task.id, task.parts[0].instruction, info=info)

    def _in(self, task: TaskFolder, split: Split) -> bool:
        """Return whether a task is of a split: as it says itself, or else by its id."""
        if self.held_out is None:
            marked = self._splits[task.id]
            return marked == split if any(self._splits.values()) else split == "eval"
        if not self.held_out:
            return True
        hashed = hashlib.blake2b(task.id.encode(), digest_size=8).digest()
        held_out = int.from_bytes(hashed) < self.held_out * 2**64
        return held_out == (split == "eval")

    def folder_of(self, task: Task) -> TaskFolder:
        """Return a task's folder.

        Raises:
            ConfigError: If the task is not in this folder.
        """
        if task.id not in self.folders:
            raise ConfigError(f"there is no task {task.id!r} in this folder of tasks")
        return self.folders[task.id]

    def spec(self, task: TaskFolder, world: World, user: str | None) -> SandboxSpec:
        """Return what a container is made from.

        Raises:
            ConfigError: If an environment variable that the task asks for is not set.
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
            keep_changes=any(fnmatchcase(folder.id, pattern) for pattern in self.keep_changes),
            keep_running=any(fnmatchcase(folder.id, pattern) for pattern in self.keep_running),
            folder=artifacts,
        )

    def longest(self, task: Task) -> float:
        """Return how many seconds the agent has for all parts of a task."""
        parts = self.folder_of(task).parts
        return sum(agent_seconds(part, self.rules.agent_timeout) for part in parts)

    def check(self) -> None:
        """Check that the tests can have containers of their own; say what tasks do not get.

        Raises:
            ConfigError: If the source of sandboxes cannot provide them; names the field.
        """
        for task in self.folders.values():
            for part in task.parts:
                if part.own is not None:
                    self.source.check_spec(self.spec(task, part.own, part.verifier.user))
        networked = [
            task.id
            for task in self.folders.values()
            if any(part.agent.allow or part.verifier.allow for part in task.parts)
        ]
        if networked and not self.rules.network:
            log.warning(
                "%d of %d tasks ask for a network, %r among them, and get none (that is the "
                'format\'s default); to give them what they ask for, network = "task"',
                len(networked),
                len(self.folders),
                networked[0],
            )


def _split(task: TaskFolder) -> str:
    split = task.metadata.get("split")
    return HELD_OUT.get(split, "") if isinstance(split, str) else ""


async def itself(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox, for those who keep their own time in it."""
    return sandbox
