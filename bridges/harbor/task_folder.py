"""Reading a task folder in Harbor's format: ``task.toml`` and the files next to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vf.bridges.harbor.config import (
    AgentTable,
    Artifact,
    EnvironmentTable,
    StepTable,
    TaskToml,
    VerifierTable,
)
from vf.bridges.harbor.model import (
    AGENT_LOGS,
    ANYWHERE,
    ARTIFACTS,
    CPUS,
    MEMORY,
    SOLUTION,
    TESTS,
    VERIFIER,
    Part,
    Phase,
    Script,
    TaskFolder,
    World,
)
from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.toml import checked, read_toml
from vf.sandbox.services.compose import OWN_FOLDER, read_compose

TOML = "task.toml"
COMPOSE, DOCKERFILE = "docker-compose.yaml", "Dockerfile"
MIB = 2**20
# Files that mean something in the format, and that are not done here.
REFUSED = {
    "trajectory.json": "a conversation that the agent begins with",
    ".harborignore": "a list of files that are left out",
    "environment/singularity-compose.yaml": "Singularity",
    "environment/docker-compose.yml": "another name of docker-compose.yaml",
    "tests/test.bat": "Windows",
}
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


def read_task(path: Path, id: str) -> TaskFolder:
    """Read one task.

    Args:
        path: Folder of the task.
        id: Id of the task.

    Raises:
        ConfigError: If a key or a file is missing, wrong or not supported; names file and key.
    """
    toml = checked_toml(path / TOML)
    for name in refused(path, [step.name for step in toml.steps]):
        feature = REFUSED.get(name) or REFUSED[name.rpartition("/")[2]]
        raise ConfigError(f"{path / name}: {feature} is not supported; remove the file")
    where = path / TOML
    world = _world(toml.environment, path / "environment", f"{where}: environment")
    if toml.steps:
        parts = [_part(path, toml, world, step) for step in toml.steps]
        for number, part in enumerate(parts):
            if part.agent.user != parts[0].agent.user:
                raise ConfigError(
                    f"{where}: steps[{number}].agent.user: another user than that of the first "
                    "step is not supported; name one user for all of them in [agent]"
                )
    else:
        parts = [_part(path, toml, world, None)]
    return TaskFolder(
        id=id,
        path=path,
        world=world,
        parts=parts,
        strategy=toml.multi_step_reward_strategy or "mean",
        metadata=toml.metadata,
    )


def checked_toml(path: Path) -> TaskToml:
    """Return the content of a ``task.toml``.

    Raises:
        ConfigError: If the file cannot be used. All problems are listed, one per line, with the
            file.
    """
    raw = read_toml(path)
    try:
        return checked(TaskToml, raw)
    except ConfigError as error:
        raise ConfigError(
            "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        ) from None


def refused(path: Path, steps: list[str]) -> Iterator[str]:
    """Yield the files of a task that mean something which is not supported."""
    names = list(REFUSED)
    for folder in ("tests", "solution"):
        names.append(f"{folder}/.harborignore")
    for step in steps:
        names += [f"steps/{step}/{name}" for name in ("trajectory.json", ".harborignore")]
        names += [f"steps/{step}/{name}/.harborignore" for name in ("tests", "solution")]
    return (name for name in names if (path / name).exists())


def without_canary(text: str) -> str:
    """Return an instruction without the marks at its top that are there to be found in data."""
    lines = text.split("\n")
    marks = 0
    while marks < len(lines) and _CANARY.fullmatch(lines[marks].strip()):
        marks += 1
    while marks < len(lines) and not lines[marks].strip():
        marks += 1
    return "\n".join(lines[marks:])


def _world(table: EnvironmentTable, folder: Path, where: str) -> World:
    """Return what a container is made from: the Compose file, the image, or the Dockerfile."""
    image, build, compose = table.docker_image, None, None
    variables = _variables(table)
    if (folder / COMPOSE).is_file():
        compose, image = folder / COMPOSE, None
        read_compose(compose, variables)
        if table.docker_image is not None:
            raise ConfigError(
                f"{where}.docker_image: not supported beside {compose}; name the image in its "
                "service main"
            )
    elif image is None:
        build = folder
        if not (folder / DOCKERFILE).is_file():
            raise ConfigError(
                f"{where}: nothing says what the container is made from; write "
                f"{folder / DOCKERFILE} or {folder / COMPOSE}, or name a docker_image"
            )
    return World(
        image=image,
        build=build,
        compose=compose,
        variables=variables if compose else {},
        build_timeout=table.build_timeout_sec,
        cpus=table.cpus,
        memory=table.memory_mb and table.memory_mb * MIB,
        storage=table.storage_mb and table.storage_mb * MIB,
        workdir=table.workdir,
        env=table.env,
        healthcheck=table.healthcheck,
        allow=ANYWHERE if table.allow is None else table.allow,
    )


def _variables(table: EnvironmentTable) -> dict[str, str]:
    """Return what Compose files of the format count on: they are one layer of several there."""
    variables = {"CONTEXT_DIR": ".", "MAIN_IMAGE_NAME": "main", "TEST_DIR": TESTS}
    variables["CPUS"] = f"{table.cpus or CPUS:g}"
    variables["MEMORY"] = f"{table.memory_mb or MEMORY // MIB}M"
    for name, folder in {"VERIFIER_LOGS": VERIFIER, "AGENT_LOGS": AGENT_LOGS}.items():
        variables |= {f"ENV_{name}_PATH": folder, f"HOST_{name}_PATH": OWN_FOLDER}
    return variables | {"ENV_ARTIFACTS_PATH": ARTIFACTS, "HOST_ARTIFACTS_PATH": OWN_FOLDER}


def _part(path: Path, toml: TaskToml, world: World, step: StepTable | None) -> Part:
    folder = path if step is None else path / "steps" / step.name
    own, brought = _own_world(path, toml, step)
    agents = [toml.agent] if step is None else [step.agent, toml.agent]
    verifiers = [toml.verifier] if step is None else [step.verifier, toml.verifier]
    base = world if own is None else own
    files = folder / "workdir"
    env: dict[str, str] = {}
    for verifier in reversed(verifiers):
        env |= verifier.env
    collect = [hook for verifier in reversed(verifiers) for hook in verifier.collect]
    artifacts = [*toml.artifacts, *(step.artifacts if step else [])]
    if not any(artifact.source.rstrip("/") == ARTIFACTS for artifact in artifacts):
        artifacts.insert(0, Artifact(source=ARTIFACTS))
    services = [*(hook.service for hook in collect), *(artifact.service for artifact in artifacts)]
    _check_services(path, world, services)
    return Part(
        name=step.name if step else "",
        instruction=_instruction(folder / "instruction.md"),
        agent=_phase(agents, world.allow),
        verifier=_phase(verifiers, base.allow),
        tests=Script((), TESTS, "test.sh", env) if brought else _tests(path, folder, env),
        solution=_solution(path, folder, toml.solution.env),
        files=files if step and files.is_dir() else None,
        setup=bool(step) and (files / "setup.sh").is_file(),
        healthcheck=step.healthcheck if step else None,
        own=own,
        collect=collect,
        artifacts=artifacts,
        min_reward=_thresholds(step),
    )


def _check_services(path: Path, world: World, names: Sequence[str | None]) -> None:
    """Check that there are the services that hooks and artifacts are of."""
    others = [name for name in names if name not in (None, world.main)]
    if not others:
        return
    if world.compose is None:
        raise ConfigError(f"{path / TOML}: service {others[0]!r}: the task has no Compose file")
    services = [side.name for side in read_compose(world.compose, world.variables).sides]
    for name in others:
        if name not in services:
            raise ConfigError(
                f"{path / TOML}: service {name!r} is none of {world.compose}."
                f"{did_you_mean(str(name), services)}"
            )


def _thresholds(step: StepTable | None) -> dict[str, float]:
    if step is None or step.min_reward is None:
        return {}
    return {"reward": step.min_reward} if isinstance(step.min_reward, float) else step.min_reward


def _phase(tables: Sequence[AgentTable | VerifierTable], allow: tuple[str, ...]) -> Phase:
    """Return a phase: what the step says, else what the task says."""
    seconds = user = None
    for table in reversed(tables):
        if table.timeout_sec is not None and (
            "timeout_sec" in table.model_fields_set or seconds is None
        ):
            seconds = table.timeout_sec
        user = user if table.user is None else str(table.user)
        allow = allow if table.allow is None else table.allow
    return Phase(seconds, user, allow)


def _own_world(path: Path, toml: TaskToml, step: StepTable | None) -> tuple[World | None, bool]:
    """Return the tests' own container, and whether its image holds the tests."""
    tables = [("verifier", toml.verifier, path / "tests")]
    if step is not None:
        key = f"steps[{toml.steps.index(step)}].verifier"
        tables.insert(0, (key, step.verifier, path / "steps" / step.name / "tests"))
    mode = next((table.mode for _, table, _ in tables if table.mode), "shared")
    if mode == "shared":
        return None, False
    resources = next((table.environment for _, table, _ in tables if table.environment), None)
    for key, table, folder in tables:
        where = f"{path / TOML}: {key}.environment"
        image = table.environment.docker_image if table.environment else None
        here = any((folder / name).is_file() for name in (COMPOSE, DOCKERFILE))
        if image or here:
            table_here = (resources or toml.environment).model_copy(update={"docker_image": image})
            return _world(table_here, folder, where), True
    table_here = (resources or toml.environment).model_copy(
        update={"docker_image": toml.environment.docker_image}
    )
    return _world(table_here, path / "environment", f"{path / TOML}: environment"), False


def _tests(path: Path, folder: Path, env: dict[str, str]) -> Script:
    """Return the tests: the task's, and a step's own on top."""
    folders = [parent / "tests" for parent in dict.fromkeys([path, folder])]
    if not any((parent / "test.sh").is_file() for parent in folders):
        raise ConfigError(f"there is no file {folders[-1] / 'test.sh'}, which verifies the task")
    return Script(tuple(parent for parent in folders if parent.is_dir()), TESTS, "test.sh", env)


def _solution(path: Path, folder: Path, env: dict[str, str]) -> Script | None:
    own = folder / "solution"
    source = own if own.is_dir() else path / "solution"
    if not source.is_dir():
        return None
    if not (source / "solve.sh").is_file():
        raise ConfigError(f"{source} holds no solve.sh; write it, or remove the folder")
    return Script((source,), SOLUTION, "solve.sh", env)


def _instruction(path: Path) -> str:
    try:
        text = without_canary(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}, which says what to do") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not text.strip():
        raise ConfigError(f"{path} is empty")
    return text
