"""The content of a task folder, independent of its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vf.bridges.harbor.config import Artifact, Collect, Healthcheck

TESTS, SOLUTION, VERIFIER = "/tests", "/solution", "/logs/verifier"
ARTIFACTS, AGENT_LOGS = "/logs/artifacts", "/logs/agent"
MEMORY, CPUS = 2 * 2**30, 1.0  # bytes and cores where a task does not say
ANYWHERE = ("*",)


@dataclass(frozen=True, slots=True)
class World:
    """What a container is made from.

    Attributes:
        image: The name of an image.
        build: A folder with a Dockerfile.
        compose: A Compose file.
        main: The service of it that is the container.
        variables: Values of the variables in it.
        build_timeout: Seconds for building.
        cpus: Cores; None where the task does not say.
        memory: Bytes, likewise.
        storage: Bytes of disk, likewise.
        workdir: The working directory; None for the image's.
        env: Variables; a value may be ``${NAME}`` or ``${NAME:-default}``.
        healthcheck: What must succeed before anything else runs.
        allow: Hosts that can be reached; ``*`` is any.
    """

    image: str | None = None
    build: Path | None = None
    compose: Path | None = None
    main: str = "main"
    variables: Mapping[str, str] = field(default_factory=dict)
    build_timeout: float = 600.0
    cpus: float | None = None
    memory: int | None = None
    storage: int | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    allow: tuple[str, ...] = ANYWHERE


@dataclass(frozen=True, slots=True)
class Phase:
    """The agent's time, or the tests'.

    Attributes:
        seconds: How long; None where the task does not say.
        user: Whom programs run as; None for the container's user.
        allow: Hosts that can be reached meanwhile.
    """

    seconds: float | None
    user: str | None
    allow: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A script that is put into a container with the files beside it.

    Attributes:
        sources: Folders, whose content is copied, and files; later ones replace earlier ones.
            None where the image holds them.
        folder: Where they go.
        name: The script in that folder.
        env: Variables, as in :class:`World`.
    """

    sources: tuple[Path, ...]
    folder: str
    name: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The script in the container."""
        return f"{self.folder}/{self.name}"


@dataclass(frozen=True, slots=True)
class Part:
    """One instruction, and how it is verified: the whole task, or a step of it.

    Attributes:
        name: The step's name; empty for a task without steps.
        instruction: What the agent is asked to do.
        files: A folder that is copied into the working directory before.
        setup: Whether ``setup.sh`` of those files is run.
        healthcheck: What must succeed then.
        agent: The agent's phase.
        solution: The reference solution; None if there is none.
        tests: What verifies.
        verifier: Its phase.
        own: The tests' own container; None where they run in the agent's.
        verdict: ``reward``: the tests write a reward file; ``pytest``: they print what passed.
        collect: Commands between the two phases.
        artifacts: What is kept.
        min_reward: Reward by key below which the further steps are not begun.
    """

    name: str
    instruction: str
    agent: Phase
    verifier: Phase
    tests: Script
    solution: Script | None = None
    files: Path | None = None
    setup: bool = False
    healthcheck: Healthcheck | None = None
    own: World | None = None
    verdict: Literal["reward", "pytest"] = "reward"
    collect: Sequence[Collect] = ()
    artifacts: Sequence[Artifact] = ()
    min_reward: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """One task.

    Attributes:
        id: Its path below the folder that was asked for.
        path: Where it lies.
        world: The container that the agent works in.
        parts: What is asked, one after the other.
        strategy: How the rewards of several parts become one.
        metadata: What the task says about itself.
    """

    id: str
    path: Path
    world: World
    parts: Sequence[Part]
    strategy: Literal["mean", "final"] = "mean"
    metadata: Mapping[str, Any] = field(default_factory=dict)
