"""Reading a task folder in Terminal-Bench's older format: ``task.yaml`` and files next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from vf.bridges.harbor.config import Artifact, Seconds
from vf.bridges.harbor.model import (
    ANYWHERE,
    ARTIFACTS,
    TESTS,
    Part,
    Phase,
    Script,
    TaskFolder,
    World,
)
from vf.bridges.harbor.task_folder import COMPOSE, DOCKERFILE, without_canary
from vf.inference.settings import Strict
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.runtime.toml import checked
from vf.sandbox.services.compose import OWN_FOLDER, read_compose

YAML = "task.yaml"
CLIENT = "client"  # the service that the agent works in
ORACLE = "/oracle"
# What the format's Compose files count on; names are of no interest where each episode has its own.
VARIABLES = {
    "T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME": CLIENT,
    "T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME": CLIENT,
    "T_BENCH_TASK_DOCKER_NAME_PREFIX": "task",
    "T_BENCH_TEST_DIR": TESTS,
    "T_BENCH_TASK_LOGS_PATH": OWN_FOLDER,
    "T_BENCH_CONTAINER_LOGS_PATH": "/logs",
    "T_BENCH_TASK_AGENT_LOGS_PATH": OWN_FOLDER,
    "T_BENCH_CONTAINER_AGENT_LOGS_PATH": "/agent-logs",
}


class TaskYaml(Strict):
    """``task.yaml``."""

    instruction: Annotated[str, Field(min_length=1)]
    """What the agent is asked to do."""
    max_agent_timeout_sec: Seconds = 360.0
    """Seconds for the agent."""
    max_test_timeout_sec: Seconds = 60.0
    """Seconds for the tests."""
    parser_name: Literal["pytest"] = "pytest"
    """How the tests' output is read."""
    run_tests_in_same_shell: Literal[False] = False
    """False: the tests have a shell of their own."""
    disable_asciinema: bool = False
    """Metadata: nothing is filmed."""
    author_name: str = ""
    """Metadata."""
    author_email: str = ""
    """Metadata."""
    difficulty: str = ""
    """Metadata."""
    category: str = ""
    """Metadata."""
    tags: list[str] = Field(default_factory=list)
    """Metadata."""
    estimated_duration_sec: float | None = None
    """Metadata."""
    expert_time_estimate_min: float | None = None
    """Metadata."""
    junior_time_estimate_min: float | None = None
    """Metadata."""


METADATA = ("author_name", "author_email", "difficulty", "category", "tags")


def read_task(path: Path, id: str) -> TaskFolder:
    """Read one task.

    Args:
        path: Folder of the task.
        id: Id of the task.

    Raises:
        ConfigError: If a key or a file is missing, wrong or not supported; names file and key.
    """
    where = path / YAML
    try:
        task = checked(TaskYaml, _table(where))
    except ConfigError as error:
        lines = str(error).splitlines()
        raise ConfigError("\n".join(f"{where}: {line}" for line in lines)) from None
    if (path / "solution.yaml").exists():
        raise ConfigError(f"{path / 'solution.yaml'} is not supported; write solution.sh")
    script = path / "run-tests.sh"
    if not script.is_file():
        raise ConfigError(f"there is no file {script}, which verifies the task")
    solution = path / "solution.sh"
    tests = [source for source in (path / "tests", script) if source.exists()]
    env = {"TEST_DIR": TESTS}
    part = Part(
        name="",
        instruction=without_canary(task.instruction),
        agent=Phase(task.max_agent_timeout_sec, None, ANYWHERE),
        verifier=Phase(task.max_test_timeout_sec, None, ANYWHERE),
        tests=Script(tuple(tests), TESTS, script.name, env),
        solution=Script((solution,), ORACLE, solution.name) if solution.is_file() else None,
        verdict="pytest",
        artifacts=[Artifact(source=ARTIFACTS)],
    )
    metadata = {name: getattr(task, name) for name in METADATA if getattr(task, name)}
    return TaskFolder(id=id, path=path, world=_world(path), parts=[part], metadata=metadata)


def _world(path: Path) -> World:
    if (path / COMPOSE).is_file():
        read_compose(path / COMPOSE, VARIABLES, main=CLIENT)
        return World(compose=path / COMPOSE, main=CLIENT, variables=VARIABLES)
    if (path / DOCKERFILE).is_file():
        return World(build=path)
    raise ConfigError(
        f"{path}: nothing says what the container is made from; write {COMPOSE} or {DOCKERFILE}"
    )


def _table(path: Path) -> dict[str, Any]:
    yaml = load("yaml", "sandbox")
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path} must be a table of keys and values, got {type(table).__name__}")
    return table
