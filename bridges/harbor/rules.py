"""What holds for all tasks of an environment of task folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from vf.bridges.harbor.model import TaskFolder, World
from vf.bridges.harbor.seen import Known
from vf.sandbox.contract import Sandbox
from vf.sandbox.spec import SandboxSpec


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all tasks of an environment.

    Attributes:
        network: Whether tasks get the network that they ask for.
        agent_timeout: Seconds for an agent whose task does not say.
        reward_key: Which of several keys is the reward.
        host_env: Variables of this machine that tasks may take over.
        spec: Makes the spec of a container, for a user.
        open: Opens a sandbox.
        known: What is known of the tasks' images.
    """

    network: bool
    agent_timeout: float
    reward_key: str
    host_env: Sequence[str]
    spec: Callable[[TaskFolder, World, str | None], SandboxSpec]
    open: Callable[[SandboxSpec], AbstractAsyncContextManager[Sandbox]]
    known: dict[SandboxSpec, Known] = field(default_factory=dict)
