"""The supported part of the Compose file format; all other keys are refused.

Types only: their meaning is in ``compose.py``. https://github.com/compose-spec/compose-spec
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vf.sandbox.services.units import parse_duration, parse_size


def _words(value: Any) -> Any:
    """Split a line as a shell does, without running one."""
    return shlex.split(value) if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    """Make a mapping of ``NAME=value`` lines; a name alone has no value."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        split = [item.partition("=") for item in value]
        return {name: text if sign else None for name, sign, text in split}
    return value


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _text(value: Any) -> Any:
    """Make texts of numbers and booleans, as they are in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _by_name(value: Any) -> Any:
    """Make a mapping of a list of names."""
    return {name: {} for name in value} if isinstance(value, list) else value


def _test(value: Any) -> Any:
    """Make a command of a health check's test."""
    return ["CMD-SHELL", value] if isinstance(value, str) else value


OrNothing = BeforeValidator(lambda value: {} if value is None else value)  # an empty table
Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
Words: TypeAlias = Annotated[list[Text], BeforeValidator(_words)]
Values: TypeAlias = Annotated[dict[str, Text | None], BeforeValidator(_pairs)]
Size: TypeAlias = Annotated[int, BeforeValidator(parse_size)]
Duration: TypeAlias = Annotated[float, BeforeValidator(parse_duration)]
Condition: TypeAlias = Literal[
    "service_started", "service_healthy", "service_completed_successfully"
]


class ComposePart(BaseModel):
    """A table that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid")


class BuildKeys(ComposePart):
    """The build of an image."""

    context: str = "."
    dockerfile: str = "Dockerfile"
    args: Values = {}
    target: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"context": value} if isinstance(value, str) else value


class DependencyKeys(ComposePart):
    """The condition for starting a service after another."""

    condition: Condition = "service_started"
    required: Literal[True] = True


class HealthKeys(ComposePart):
    """The health check of a service."""

    test: Annotated[list[str], BeforeValidator(_test)] | None = None
    interval: Duration = 30.0
    timeout: Duration = 30.0
    retries: int = Field(default=3, ge=1)
    start_period: Duration = 0.0
    start_interval: Duration = 5.0
    disable: bool = False


class TmpfsKeys(ComposePart):
    """A temporary file system."""

    size: Size | None = None


class MountKeys(ComposePart):
    """A volume, a temporary file system, or files to be copied."""

    type: Literal["volume", "tmpfs", "bind"]
    source: str | None = None
    target: str
    read_only: bool = False
    tmpfs: TmpfsKeys = TmpfsKeys()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Parse ``source:target:options``."""
        if not isinstance(value, str):
            return value
        parts = value.split(":")
        if len(parts) == 1:
            return {"type": "volume", "target": value}
        if len(parts) > 3:
            raise ValueError(f"{value!r} is not source:target or source:target:ro")
        options = set(parts[2].split(",")) if len(parts) == 3 else set()
        if odd := options - {"ro", "rw", "z", "Z"}:
            raise ValueError(f"the option {min(odd)!r} is not known: ro and rw are")
        kind = "bind" if parts[0][:1] in (".", "/", "~") else "volume"
        return {"type": kind, "source": parts[0], "target": parts[1], "read_only": "ro" in options}


class NetworkKeys(ComposePart):
    """A service's place in the network."""

    aliases: list[str] = []


class LimitKeys(ComposePart):
    """The limits of a service."""

    cpus: float | None = Field(default=None, gt=0)
    memory: Size | None = None
    pids: int | None = Field(default=None, gt=0)


class ResourceKeys(ComposePart):
    """Resources."""

    limits: LimitKeys = LimitKeys()


class DeployKeys(ComposePart):
    """The deployment of a service."""

    resources: ResourceKeys = ResourceKeys()
    replicas: Literal[1] = 1


class EnvFileKeys(ComposePart):
    """A file with variables."""

    path: str
    required: bool = True

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class ServiceKeys(ComposePart):
    """One service."""

    image: str | None = None
    build: BuildKeys | None = None
    command: Words | None = None
    entrypoint: Words | None = None
    environment: Values = {}
    env_file: Annotated[list[EnvFileKeys], BeforeValidator(_texts)] = []
    working_dir: str | None = None
    user: Text | None = None
    depends_on: Annotated[dict[str, DependencyKeys], BeforeValidator(_by_name)] = {}
    healthcheck: HealthKeys | None = None
    expose: list[Text] = []
    tmpfs: Annotated[list[str], BeforeValidator(_texts)] = []
    volumes: list[MountKeys] = []
    networks: Annotated[
        dict[Literal["default"], Annotated[NetworkKeys, OrNothing]], BeforeValidator(_by_name)
    ] = {}
    hostname: str | None = None
    container_name: str | None = None
    mem_limit: Size | None = None
    cpus: float | None = Field(default=None, gt=0)
    pids_limit: int | None = Field(default=None, gt=0)
    deploy: DeployKeys = DeployKeys()
    shm_size: Size | None = None
    read_only: bool = False
    init: bool = True
    cap_drop: list[str] = []
    cap_add: list[str] = []
    security_opt: list[Literal["no-new-privileges:true", "no-new-privileges"]] = []
    stop_grace_period: Duration = 10.0
    stop_signal: str = "SIGTERM"
    restart: Literal["no"] = "no"
    stdin_open: bool = False
    tty: bool = False
    pull_policy: Literal["build", "missing", "if_not_present", "never"] = "missing"
    labels: Values = {}


class VolumeKeys(ComposePart):
    """A volume of the episode."""

    driver: Literal["local"] = "local"


class TopNetworkKeys(ComposePart):
    """The episode's network."""

    driver: Literal["bridge"] = "bridge"
    internal: bool = True


class ComposeKeys(ComposePart):
    """A Compose file."""

    version: Text | None = None  # without a meaning since Compose 1.27
    name: str | None = None  # of the project: an episode has a name of its own
    services: dict[str, ServiceKeys]
    volumes: dict[str, Annotated[VolumeKeys, OrNothing]] = {}
    networks: dict[Literal["default"], Annotated[TopNetworkKeys, OrNothing]] = {}
