"""The environment ``harbor``: task folders, in the formats of Harbor and Terminal-Bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from vf.bridges.harbor.environment import TaskFolders
from vf.bridges.harbor.folders import Folders
from vf.bridges.harbor.inside import program_folders
from vf.environments.environment import Environment
from vf.runtime.errors import ConfigError
from vf.sandbox.hosting.source import Sandboxes


def harbor(
    tasks: str,
    sandbox: Sandboxes = "docker",
    network: Literal["none", "task"] = "none",
    held_out: float | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    tools: Sequence[str] = ("bash", "files"),
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
) -> Environment:
    """Make an environment of task folders; ``"harbor:path/to/tasks"`` is this with ``tasks``.

    Args:
        tasks: A folder that is a task, or contains tasks at any depth.
        sandbox: Source of the containers; see :func:`~vf.sandbox.hosting.source.sandbox_source`.
            Its limits apply where a task sets none.
        network: ``"none"``: no container reaches anything. ``"task"``: each phase of a task reaches
            what it asks for, through a proxy; what asks for nothing gets all public hosts, which is
            the format's default.
        held_out: Share of the tasks that are for evaluation, drawn by their ids; the others are for
            training. 0 uses all tasks for both. By default ``[metadata] split`` of the tasks
            decides, and if none has one, all of them are for evaluation.
        only: Patterns of the ids of tasks to use, such as ``"easy/*"``; by default all.
        skip: Patterns of the ids of tasks to skip without reading them.
        tools: Tools of the model: ``bash``, ``files`` (to list, read, write and edit them).
        command: A program that works on the tasks inside their containers, in place of the tools;
            see :func:`vf.environments.agents.program.program` for what it is given.
        folder: The program's own files, copied to ``/opt/agent``; ``command`` may name them.
        env: Additional environment variables of the program.
        agent_timeout: Seconds for the agent if a task does not set them, excluding the model's
            answers.
        bash_timeout: Seconds for one command of the model's.
        max_turns: Maximum answers of the model in one episode.
        max_tokens: Maximum tokens sampled in one episode; None for no limit.
        reward_key: Key of the reward in a ``reward.json`` with several.
        host_env: Names of this machine's environment variables that tasks may use as ``${NAME}``.
        keep_changes: Patterns of the ids of tasks whose point it is to change the system outside of
            the work folder: their tests run in the agent's container as it is.
        keep_running: Patterns of the ids of tasks whose tests need processes that the agent left
            running. Their tests run in the agent's container, after its files were restored; the
            processes can act while they run.

    Raises:
        ConfigError: If an argument or a task cannot be used; names file and key.
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
    )
    if command:
        return program_folders(folders, command, folder, env, max_turns, max_tokens)
    for name, value in {"folder": folder, "env": env}.items():
        if value:
            raise ConfigError(f"env.args.{name} is for env.args.command, which is not given")
    return TaskFolders(folders, tools, bash_timeout, max_turns, max_tokens)
