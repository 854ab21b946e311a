"""Compose files: the containers of an episode and the settings of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vf.runtime.errors import ConfigError, did_you_mean
from vf.sandbox.container.joined import CAPABILITIES
from vf.sandbox.services.schema import (
    ComposeKeys,
    HealthKeys,
    MountKeys,
    ServiceKeys,
)
from vf.sandbox.services.service_spec import Health, ServiceSpec
from vf.sandbox.services.units import parse_size
from vf.sandbox.services.variables import interpolate, read_variables
from vf.sandbox.spec import Build, Pairs, pairs

# As the source of a mount: a separate folder of the container. Task folders name the host's folders
# for their logs by variables, which are set to this.
OWN_FOLDER = "/.vf-own-folder"
DOCKERFILE = "Dockerfile"
MOST_SERVICES = 16  # of an episode
NO_PORTS = "remove it: every port of a service is reached by the service's name"
NO_HOST = "remove it: no container has a part of this machine"
NO_RIGHTS = "remove it: containers of episodes have no more rights than the default"
ONE_NETWORK = 'remove it: all services are in the network "default"'
WHY_NOT = {
    "ports": NO_PORTS,
    "links": NO_PORTS,
    "privileged": NO_RIGHTS,
    "devices": NO_HOST,
    "device_cgroup_rules": NO_RIGHTS,
    "gpus": NO_HOST,
    "network_mode": ONE_NETWORK,
    "networks": ONE_NETWORK,
    "ipc": NO_HOST,
    "pid": NO_HOST,
    "uts": NO_HOST,
    "userns_mode": NO_RIGHTS,
    "cgroup": NO_RIGHTS,
    "cgroup_parent": NO_RIGHTS,
    "sysctls": NO_RIGHTS,
    "dns": "remove it: only names of services are resolved",
    "dns_search": "remove it: only names of services are resolved",
    "extra_hosts": "remove it, or give that service a network alias",
    "restart": "remove it: a service that ends has ended, which its exit code explains",
    "profiles": "remove it: every service of the file is started",
    "extends": "write the service's keys out, or use a YAML anchor",
    "include": "write the services into this file",
    "secrets": "use a variable, or copy a file with a read-only mount ./file:/path:ro",
    "configs": "copy a file with a read-only mount ./file:/path:ro",
    "logging": "remove it: the end of every service's output is kept",
    "develop": "remove it",
}


@dataclass(frozen=True, slots=True)
class Compose:
    """The content of a Compose file.

    Attributes:
        path: The file.
        main: The service that is the sandbox itself.
        sides: The others, each after those that it depends on.
        volumes: Names of the shared volumes.
    """

    path: Path
    main: ServiceSpec
    sides: tuple[ServiceSpec, ...]
    volumes: tuple[str, ...]


def read_compose(
    path: Path, variables: Mapping[str, str] | None = None, *, main: str = "main"
) -> Compose:
    """Read a Compose file.

    Every key is applied, or refused with an error. These are accepted without an effect:
    ``version``, ``name``, ``expose`` and ``labels`` only describe; ``init`` is always on;
    ``stop_signal`` and ``stop_grace_period`` are for containers that are stopped, while an
    episode's are destroyed; ``pull_policy`` is the source's setting.

    Args:
        path: The file. A file ``.env`` beside it sets variables too, and a main service without
            an image is built from a ``Dockerfile`` beside it.
        variables: Values of the variables in it; those of this process's environment are not used.
        main: The service that becomes the sandbox.

    Raises:
        ConfigError: If it cannot be read, or requires what is not supported; names file, service
            and key, and what to do.
    """
    path = path.absolute()
    values = dict(variables or {})
    env_file = path.parent / ".env"
    if env_file.is_file():
        values = {**read_variables(env_file, values), **values}
    from vf.sandbox.services.yaml_file import read_yaml  # needs the extra

    raw = read_yaml(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("services"), dict):
        raise ConfigError(f"{path} has no services")
    raw = interpolate(_without_extensions(raw), values, str(path))
    if (path.parent / DOCKERFILE).is_file():  # Compose files of tasks add services to it
        main_keys = raw["services"].setdefault(main, {})
        if isinstance(main_keys, dict) and not main_keys.get("image"):
            main_keys.setdefault("build", {})
    try:
        keys = ComposeKeys.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in _problems(error))) from None
    if main not in keys.services:
        hint = did_you_mean(main, list(keys.services))
        raise ConfigError(f"{path}: there is no service {main!r}, which is the sandbox.{hint}")
    if len(keys.services) > MOST_SERVICES:
        raise ConfigError(f"{path} has {len(keys.services)} services: {MOST_SERVICES} are the most")
    reader = _Reader(path, values, keys, main)
    specs = {name: reader.service(name) for name in keys.services}
    for spec in specs.values():
        if main in dict(spec.after):
            raise ConfigError(
                f"{path}: services.{spec.name}.depends_on: remove {main!r}: the sandbox is started "
                "after its side services"
            )
    _check_names(path, specs)
    sides = [specs[name] for name in _in_order(path, specs) if name != main]
    return Compose(path, specs[main], tuple(sides), tuple(keys.volumes))


class _Reader:
    """Makes specs of services from the keys of the file."""

    def __init__(
        self, path: Path, variables: Mapping[str, str], keys: ComposeKeys, main: str
    ) -> None:
        self._path, self._variables, self._keys, self._main = path, variables, keys, main

    def service(self, name: str) -> ServiceSpec:
        keys = self._keys.services[name]
        if not keys.image and keys.build is None:
            raise self._wrong(name, "image", "there is none: give image or build")
        for key in ("stdin_open", "tty"):
            if getattr(keys, key) and name != self._main:
                raise self._wrong(name, key, f"remove it: only {self._main} is talked to")
        mounts = list(self._mounts(name, keys))
        limits = keys.deploy.resources.limits
        health = keys.healthcheck
        aliases = [*keys.networks["default"].aliases] if keys.networks else []
        return ServiceSpec(
            name=name,
            image=None if keys.build else keys.image,
            build=self._build(keys),
            command=None if keys.command is None else tuple(keys.command),
            entrypoint=None if keys.entrypoint is None else tuple(keys.entrypoint),
            env=self._env(keys),
            workdir=keys.working_dir,
            user=keys.user,
            after=tuple((key, item.condition) for key, item in keys.depends_on.items()),
            health=self._health(name, health),
            healthless=health is not None and (health.disable or health.test == ["NONE"]),
            volumes=tuple(
                (item.source, item.target, item.read_only)
                for item in mounts
                if item.type == "volume" and item.source
            ),
            tmpfs=(
                *((item.target, item.tmpfs.size) for item in mounts if not item.source),
                *(self._tmpfs(name, text) for text in keys.tmpfs),
            ),
            copies=tuple(self._copies(mounts)),
            folders=tuple(item.target for item in mounts if item.source == OWN_FOLDER),
            aliases=tuple(dict.fromkeys([name, *aliases, *filter(None, [keys.container_name])])),
            hostname=keys.hostname or name,
            memory=keys.mem_limit or limits.memory,
            cpus=keys.cpus or limits.cpus,
            pids=keys.pids_limit or limits.pids,
            shm=keys.shm_size,
            read_only=keys.read_only,
            capabilities=self._capabilities(name, keys),
        )

    def _wrong(self, service: str, key: str, reason: str) -> ConfigError:
        return ConfigError(f"{self._path}: services.{service}.{key}: {reason}")

    def _build(self, keys: ServiceKeys) -> Build | None:
        if keys.build is None:
            return None
        args = {
            key: self._variables.get(key, "") if value is None else value
            for key, value in keys.build.args.items()
        }
        folder = self._path.parent / keys.build.context
        return Build(folder.resolve(), keys.build.dockerfile, args, keys.build.target)

    def _env(self, keys: ServiceKeys) -> Pairs:
        env: dict[str, str] = {}
        for item in keys.env_file:
            file = self._path.parent / item.path
            if item.required or file.is_file():
                env |= read_variables(file, self._variables)
        for key, value in keys.environment.items():
            if value is not None:
                env[key] = value
            elif key in self._variables:
                env[key] = self._variables[key]
        return pairs(env)

    def _health(self, name: str, keys: HealthKeys | None) -> Health | None:
        if keys is None or keys.disable or keys.test is None or keys.test == ["NONE"]:
            return None
        kind, *words = keys.test
        if kind not in ("CMD", "CMD-SHELL") or not words:
            reason = 'a list begins with "CMD" or "CMD-SHELL" and continues with the command'
            raise self._wrong(name, "healthcheck.test", reason)
        test = tuple(words) if kind == "CMD" else " ".join(words)
        return Health(test, keys.interval, keys.timeout, keys.retries, keys.start_period)

    def _mounts(self, name: str, keys: ServiceKeys) -> Iterator[MountKeys]:
        for index, item in enumerate(keys.volumes):
            key = f"volumes[{index}]"
            if not item.target.startswith("/"):
                raise self._wrong(name, key, f"{item.target!r} is not an absolute path")
            if item.type == "tmpfs" and item.source:
                raise self._wrong(name, key, "a tmpfs has no source")
            if item.type == "volume" and item.source and item.source not in self._keys.volumes:
                hint = did_you_mean(item.source, list(self._keys.volumes))
                reason = f"the file's volumes have no {item.source!r}.{hint}"
                raise self._wrong(name, key, reason)
            if item.type == "bind" and item.source != OWN_FOLDER:
                self._check_copy(name, key, item)
            yield item

    def _check_copy(self, name: str, key: str, item: MountKeys) -> None:
        """Accept what is read-only and beside the file: it is copied."""
        folder = self._path.parent.resolve()
        source = (folder / (item.source or "~")).resolve()
        if item.read_only and source.is_relative_to(folder) and source.exists():
            return
        raise self._wrong(
            name,
            key,
            f"{item.source!r} of this machine cannot be mounted: put it into the image, or, where "
            "it lies beside this file, mount it read-only (./file:/path:ro), so that it is "
            "copied; for data that services share take a named volume",
        )

    def _copies(self, mounts: list[MountKeys]) -> Iterator[tuple[Path, str]]:
        for item in mounts:
            if item.type == "bind" and item.source and item.source != OWN_FOLDER:
                yield (self._path.parent / item.source).resolve(), item.target

    def _tmpfs(self, name: str, text: str) -> tuple[str, int | None]:
        path, _, options = text.partition(":")
        size = None
        for option in filter(None, options.split(",")):
            key, _, value = option.partition("=")
            if key != "size":
                reason = f"the option {option!r} is not known: size=64m is"
                raise self._wrong(name, "tmpfs", reason)
            size = parse_size(value)
        return path, size

    def _capabilities(self, name: str, keys: ServiceKeys) -> tuple[str, ...]:
        dropped = {capability.upper().removeprefix("CAP_") for capability in keys.cap_drop}
        added = {capability.upper().removeprefix("CAP_") for capability in keys.cap_add}
        if odd := sorted(added - set(CAPABILITIES)):
            reason = f"remove {odd[0]}: there are only {', '.join(CAPABILITIES)}"
            raise self._wrong(name, "cap_add", reason)
        kept = set() if "ALL" in dropped else set(CAPABILITIES) - dropped
        return tuple(sorted(kept | added))


def _without_extensions(raw: dict[Any, Any]) -> dict[Any, Any]:
    """Return the file without the format's extensions: keys that begin with ``x-``."""

    def keep(items: Any) -> Any:
        if not isinstance(items, dict):
            return items
        return {key: item for key, item in items.items() if not str(key).startswith("x-")}

    cleaned = keep(raw)
    cleaned["services"] = {name: keep(item) for name, item in cleaned["services"].items()}
    return dict(cleaned)


def _problems(error: ValidationError) -> Iterator[str]:
    """Yield a line for each error."""
    for item in error.errors():
        path = [str(part) for part in item["loc"] if part != "[key]"]
        key = path[2] if path[:1] == ["services"] and len(path) > 2 else path[0]
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = WHY_NOT.get(path[-1]) or WHY_NOT.get(key) or _unknown(path)
        elif item["type"] == "literal_error":
            message = WHY_NOT.get(key, f"{message}, got {item['input']!r}")
        yield f"{'.'.join(path)}: {message}"


def _unknown(path: list[str]) -> str:
    names = list((ServiceKeys if path[0] == "services" else ComposeKeys).model_fields)
    return f"this key is not done here: remove it.{did_you_mean(path[-1], names)}"


def _check_names(path: Path, specs: Mapping[str, ServiceSpec]) -> None:
    """Check that no two services have the same name.

    Raises:
        ConfigError: If two have.
    """
    owners: dict[str, str] = {}
    for service, spec in specs.items():
        for name in spec.aliases:
            if owners.setdefault(name, service) != service:
                raise ConfigError(
                    f"{path}: services.{service}.networks: {name!r} is the service "
                    f"{owners[name]!r} already: take another alias or container_name"
                )


def _in_order(path: Path, specs: Mapping[str, ServiceSpec]) -> list[str]:
    """Return the services, each after those that it depends on.

    Raises:
        ConfigError: If they depend on one another in a circle, or on one that is not there.
    """
    order: list[str] = []

    def add(name: str, ancestors: list[str]) -> None:
        if name in ancestors:
            circle = " -> ".join([*ancestors[ancestors.index(name) :], name])
            raise ConfigError(f"{path}: services.{name}.depends_on: a circle: {circle}")
        for other, _ in specs[name].after:
            if other not in specs:
                hint = did_you_mean(other, list(specs))
                reason = f"there is no service {other!r}.{hint}"
                raise ConfigError(f"{path}: services.{name}.depends_on: {reason}")
            add(other, [*ancestors, name])
        if name not in order:
            order.append(name)

    for name in specs:
        add(name, [])
    return order
