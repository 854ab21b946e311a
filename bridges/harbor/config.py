"""The keys of ``task.toml``, schema 1.0 to 1.4: every one is read, or refused by its name."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from vf.inference.settings import STRICT, Strict, real_numbers

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_SIZES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}  # in MiB
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9-]{1,63})*")
_STEP = re.compile(r"[^<>:\"/\\|?*\x00-\x1f\x7f]{1,255}")

Seconds = Annotated[float, Field(gt=0)]
User = str | int | None
Pairs = dict[str, str]


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} must be an absolute path without '..'")
    return path


def _as_number(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _mebibytes(value: Any) -> Any:
    """Read the older ``memory = "2G"``."""
    if not isinstance(value, str):
        raise ValueError(f"must be a size such as '2G' or '512M', got {value!r}")
    number, unit = value.strip()[:-1], value.strip()[-1:].upper()
    try:
        return int(float(number) * _SIZES[unit])
    except (KeyError, ValueError):
        raise ValueError(f"must be a size such as '2G' or '512M', got {value!r}") from None


def _only(what: str, *harmless: Any) -> BeforeValidator:
    """Refuse all values of a key but those that ask for nothing."""

    def check(value: Any) -> Any:
        if value not in harmless:
            raise ValueError(f"{what} not supported, got {value!r}")
        return value

    return BeforeValidator(check)


def _host(entry: str) -> str:
    name = entry.strip().lower().rstrip(".")
    try:
        return ip_network(name).compressed if "/" in name else _plain(name)
    except ValueError:
        raise ValueError(
            f"{entry!r} is no host: write a name, '*.name', an IP address or a range of them, "
            "without port and path"
        ) from None


def _plain(name: str) -> str:
    if ":" in name:
        return ip_address(name).compressed
    if not _HOST.fullmatch(name):
        raise ValueError(name)
    return name


Host = Annotated[str, AfterValidator(_host)]
Network = Literal["no-network", "public", "allowlist"]


class Networked(BaseModel):
    """What a phase, or a whole environment, may reach."""

    model_config = STRICT
    _numbers = real_numbers()

    network_mode: Network | None = None
    """`no-network`, `public` or `allowlist`."""
    allowed_hosts: list[Host] | None = None
    """What can be reached with `allowlist`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts is for network_mode = 'allowlist'")
        return self

    @property
    def allow(self) -> tuple[str, ...] | None:
        """The hosts that can be reached, ``*`` for all; None where nothing is said."""
        match self.network_mode:
            case None:
                return None
            case "no-network":
                return ()
            case "public":
                return ("*",)
        return tuple(self.allowed_hosts or ())


class Healthcheck(Strict):
    """A command that must succeed before the agent begins."""

    command: str
    """Shell command."""
    interval_sec: Annotated[float, Field(ge=0)] = 5.0
    """Seconds between attempts."""
    timeout_sec: Seconds = 30.0
    """Seconds for one attempt."""
    start_period_sec: Annotated[float, Field(ge=0)] = 0.0
    """Seconds in which failures do not count."""
    start_interval_sec: Annotated[float, Field(ge=0)] = 5.0
    """Seconds between attempts in that time."""
    retries: Annotated[int, Field(ge=1)] = 3
    """Failures in a row that are one too many."""


class EnvironmentTable(Networked):
    """``[environment]`` and ``[verifier.environment]``."""

    build_timeout_sec: Seconds = 600.0
    """Seconds for building the image."""
    docker_image: str | None = None
    """An image, in place of the folder's Dockerfile."""
    os: Annotated[str, _only("an operating system other than 'linux' is", "linux", "Linux")] = (
        "linux"
    )
    """`linux`."""
    cpus: Annotated[float, Field(gt=0)] | None = None
    """Cores."""
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    """Memory in MiB."""
    storage_mb: Annotated[int, Field(gt=0)] | None = None
    """Disk in MiB."""
    gpus: Annotated[int | None, _only("a GPU in a task's container is", None, 0)] = None
    """None: containers have no GPU."""
    gpu_types: Annotated[list[str] | None, _only("a GPU in a task's container is", None, [])] = None
    """None."""
    tpu: Annotated[Any, _only("a TPU in a task's container is", None)] = None
    """None."""
    mcp_servers: Annotated[list[Any], _only("an MCP server of a task's is", [])] = []
    """None."""
    skills_dir: Annotated[str | None, _only("a folder of skills is", None)] = None
    """None."""
    env: Pairs = Field(default_factory=dict)
    """Variables of everything that runs in the container."""
    healthcheck: Healthcheck | None = None
    """Run when the environment has started."""
    workdir: Annotated[str, AfterValidator(_absolute)] | None = None
    """Working directory, in place of the image's."""

    @model_validator(mode="before")
    @classmethod
    def _older(cls, raw: Any) -> Any:
        """Read the keys of older schemas."""
        if not isinstance(raw, dict):
            return raw
        raw = dict(raw)
        for old in ("memory", "storage"):
            if old in raw:
                size = _mebibytes(raw.pop(old))
                if raw.setdefault(f"{old}_mb", size) != size:
                    raise ValueError(f"{old} and {old}_mb say different things; keep {old}_mb")
        internet = raw.pop("allow_internet", None)
        if internet is not None and "network_mode" not in raw and "allowed_hosts" not in raw:
            raw["network_mode"] = "public" if internet else "no-network"
        return raw


class Collect(Strict):
    """``[[verifier.collect]]``: a command that writes down a state, before it is gone."""

    command: str
    """Shell command."""
    service: str = "main"
    """The service of the Compose file that it runs in."""
    timeout_sec: Seconds = 60.0
    """Seconds."""
    user: User = None
    """Whom it runs as."""


class VerifierTable(Networked):
    """``[verifier]``."""

    timeout_sec: Seconds = 600.0
    """Seconds for the tests."""
    env: Pairs = Field(default_factory=dict)
    """Variables of the tests."""
    user: User = None
    """Whom the tests run as."""
    environment_mode: Literal["shared", "separate"] | None = None
    """Whether the tests run in the agent's container or in one of their own."""
    environment: EnvironmentTable | None = None
    """The tests' own container."""
    collect: list[Collect] = Field(default_factory=list)
    """Commands between the agent and the tests."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError(
                "environment_mode = 'shared' and [verifier.environment] contradict each other; "
                "leave one out"
            )
        return self

    @property
    def mode(self) -> str | None:
        """``shared``, ``separate``, or None where nothing is said."""
        return self.environment_mode or ("separate" if self.environment else None)


class AgentTable(Networked):
    """``[agent]``."""

    timeout_sec: Seconds | None = None
    """Seconds for the agent."""
    user: User = None
    """Whom the agent's programs run as."""


class Artifact(Strict):
    """What is kept of a container, and given to a verifier of its own."""

    source: str
    """A file or folder of the container."""
    destination: str | None = None
    """Where it is kept, relative to the artifacts' folder; by default as in the container."""
    exclude: list[str] = Field(default_factory=list)
    """Names of files and folders that are left out."""
    service: str | None = None
    """The service of the Compose file that has it."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if ".." in PurePosixPath(self.source).parts or not self.source.strip("/"):
            raise ValueError(f"source {self.source!r} must be a path without '..'")
        for pattern in self.exclude:
            if not re.fullmatch(r"[\w.-]+", pattern):
                raise ValueError(f"exclude takes names of files and folders, got {pattern!r}")
        if self.destination:
            path = PurePosixPath(self.destination)
            if path.is_absolute() or ".." in path.parts or "\\" in self.destination:
                raise ValueError(f"destination {self.destination!r} must be a relative path")
            if str(path) == "manifest.json":
                raise ValueError("destination 'manifest.json' is taken; choose another name")
        return self

    @property
    def kept_as(self) -> PurePosixPath:
        """Where it is kept, relative to the artifacts' folder."""
        return PurePosixPath(self.destination or self.source.lstrip("/"))


def _as_artifact(entry: Any) -> Any:
    return {"source": entry} if isinstance(entry, str) else entry


Artifacts = list[Annotated[Artifact, BeforeValidator(_as_artifact)]]


def _step_name(name: str) -> str:
    if not _STEP.fullmatch(name) or not name.strip() or name.endswith((".", " ")):
        raise ValueError(f"{name!r} must be the name of a folder below steps/")
    return name


class StepTable(Strict):
    """``[[steps]]``."""

    name: Annotated[str, AfterValidator(_step_name)]
    """The folder below `steps/`."""
    agent: AgentTable = Field(default_factory=AgentTable)
    """In place of what `[agent]` says."""
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    """In place of what `[verifier]` says."""
    min_reward: Annotated[float | dict[str, float] | None, BeforeValidator(_as_number)] = None
    """Below this, the further steps are not begun."""
    healthcheck: Healthcheck | None = None
    """Run when the step has been set up."""
    artifacts: Artifacts = Field(default_factory=list)
    """Kept after this step, beside the task's."""


class SolutionTable(Strict):
    """``[solution]``."""

    env: Pairs = Field(default_factory=dict)
    """Variables of the solution."""


class Author(Strict):
    """One of ``[[task.authors]]``."""

    name: str
    """Metadata."""
    email: str | None = None
    """Metadata."""


class PackageTable(Strict):
    """``[task]``: metadata."""

    name: str
    """Metadata."""
    version: str | None = None
    """Metadata."""
    description: str = ""
    """Metadata."""
    authors: list[Author] = Field(default_factory=list)
    """Metadata."""
    keywords: list[str] = Field(default_factory=list)
    """Metadata."""


class TaskToml(Strict):
    """``task.toml``."""

    schema_version: str = SCHEMAS[-1]
    """Version of the format."""
    task: PackageTable | None = None
    """Metadata."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Metadata."""
    source: str | None = None
    """Metadata."""
    environment: EnvironmentTable = Field(default_factory=EnvironmentTable)
    """The container that the agent works in."""
    agent: AgentTable = Field(default_factory=AgentTable)
    """The agent's phase."""
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    """The tests' phase."""
    solution: SolutionTable = Field(default_factory=SolutionTable)
    """The reference solution."""
    steps: list[StepTable] = Field(default_factory=list)
    """Steps, one after the other in the same container."""
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    """How the steps' rewards become the task's."""
    artifacts: Artifacts = Field(default_factory=list)
    """What is kept of the container."""

    @model_validator(mode="before")
    @classmethod
    def _older(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "version" in raw:
            raw = dict(raw)
            raw.setdefault("schema_version", raw.pop("version"))
        return raw

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schema_version not in SCHEMAS:
            raise ValueError(
                f"schema_version {self.schema_version!r} is not supported; "
                f"known: {', '.join(SCHEMAS)}"
            )
        names = [step.name.casefold() for step in self.steps]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two steps are called {twice[0]!r}")
        if self.multi_step_reward_strategy and not self.steps:
            raise ValueError("multi_step_reward_strategy is for tasks with [[steps]]")
        return self
