"""What holds for all tasks of an environment of task folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from vf.bridges.harbor.model import TaskFolder, World
from vf.bridges.harbor.work import ImageFacts
from vf.sandbox.contract import Sandbox
from vf.sandbox.spec import SandboxSpec


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all tasks of an environment.

    Attributes:
        network: Whether tasks get the network that they ask for.
        agent_timeout: Seconds for the agent if a task does not set them.
        reward_key: Key of the reward where there are several.
        host_env: Names of this machine's environment variables that tasks may use.
        spec: Makes the spec of a container, for a user.
        open: Opens a sandbox.
        image_facts: Facts about the tasks' images.
    """

    network: bool
    agent_timeout: float
    reward_key: str
    host_env: Sequence[str]
    spec: Callable[[TaskFolder, World, str | None], SandboxSpec]
    open: Callable[[SandboxSpec], AbstractAsyncContextManager[Sandbox]]
    image_facts: dict[SandboxSpec, ImageFacts] = field(default_factory=dict)
