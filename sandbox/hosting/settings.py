"""The settings of an environment's argument ``sandbox`` for containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError, did_you_mean
from vf.sandbox.bounds import PULLS, Bounds
from vf.sandbox.container.address import Address
from vf.sandbox.container.hardening import Profile
from vf.sandbox.contract import Limits
from vf.sandbox.hosting import values
from vf.sandbox.hosting.spec_images import check_spec
from vf.sandbox.hosting.values import LIMITS
from vf.sandbox.spec import Build, SandboxSpec

BOUNDS = [field.name for field in fields(Bounds)]
BUILD = [field.name for field in fields(Build)]
PROFILE = ["image", "network", "runtime", "packages", "writable", "user", "workdir", "env"]
HOST = ["url", "certs"]
SPEC = ["build", "compose", "compose_main", "compose_variables", "allow"]
DOCKER = ["backend", "hosts", *PROFILE, *SPEC, *BOUNDS, *LIMITS]


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """The settings of containers and their engines.

    Attributes:
        profile: The containers' settings.
        spec: Further settings, for tasks without a spec.
        bounds: The limits on all containers of one engine.
        hosts: The engines' addresses; None is that of ``DOCKER_HOST``.
    """

    profile: Profile
    spec: SandboxSpec
    bounds: Bounds
    hosts: Sequence[Address | None] = (None,)


def docker_settings(settings: Mapping[str, Any]) -> DockerSettings:
    """Check settings, whose names are those of :data:`DOCKER`.

    Raises:
        ConfigError: If a value is invalid; names the setting.
    """

    values.require_counts(settings, "pool", "concurrency", "max_containers", "build_concurrency")

    def require(good: Callable[[Any], bool], what: str, *names: str) -> None:
        values.require(settings, good, what, *names)

    require(values.number, "a number", *LIMITS)
    require(lambda value: values.number(value) and value > 0, "a positive number", "image_disk")
    require(values.name, "a name", "image", "network", "runtime", "user", "workdir")
    require(values.names, "a list of names", "packages")
    require(values.texts, 'a table of texts, { NAME = "value" }', "env", "compose_variables")
    require(lambda value: isinstance(value, bool), "true or false", "writable")
    choices = " or ".join(f'"{name}"' for name in PULLS)
    require(lambda value: value in PULLS, choices, "pull")
    require(values.name, "the path of a Compose file", "compose")
    require(values.name, "a service's name", "compose_main")
    require(values.names, "a list of hosts", "allow")
    made = [name for name in ("image", "build", "compose") if name in settings]
    if len(made) > 1 or (made and made != ["image"] and "packages" in settings):
        own = " and ".join(f"sandbox.{name}" for name in [*made, "packages"][:2])
        raise ConfigError(f"{own} exclude each other: leave one of them out")

    def given(names: list[str]) -> dict[str, Any]:
        return {name: settings[name] for name in names if name in settings}

    try:
        profile = Profile(limits=Limits(**given(LIMITS)), **given(PROFILE))
    except ValueError as error:
        raise ConfigError(f"sandbox: {error}") from error
    made_from = given(SPEC)
    if "build" in made_from:
        made_from["build"] = _build(made_from["build"])
    spec = SandboxSpec(**made_from)
    try:
        check_spec(spec, profile)
    except ConfigError as error:
        raise ConfigError(str(error).replace("sandbox_spec", "sandbox", 1)) from error
    hosts = _hosts(settings["hosts"]) if "hosts" in settings else [None]
    return DockerSettings(profile, spec, Bounds(**given(BOUNDS)), tuple(hosts))


def _hosts(value: Any) -> list[Address]:
    """Return the engines' addresses from a list of URLs, or tables with ``url`` and ``certs``."""
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(f"sandbox.hosts must be a list of addresses, got {value!r}")
    addresses = [
        _address(address, f"sandbox.hosts[{number}]") for number, address in enumerate(value)
    ]
    for number, address in enumerate(addresses):
        if address.url in [other.url for other in addresses[:number]]:
            raise ConfigError(f"sandbox.hosts[{number}] is there twice: {address}")
    return addresses


def _address(value: Any, name: str) -> Address:
    table = {"url": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or "url" not in table:
        raise ConfigError(f"{name} must be an address, or a table with a url, got {value!r}")
    for key, text in table.items():
        if key not in HOST:
            hint = did_you_mean(str(key), HOST)
            raise ConfigError(f"{name} has no setting {key!r}.{hint} It takes: {', '.join(HOST)}")
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{name}.{key} must be text, got {text!r}")
    try:
        return Address(table["url"], Path(table["certs"]) if "certs" in table else None)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def _build(value: Any) -> Build:
    """Return a build from a folder's path, or a table of ``Build``'s fields."""
    table = {"folder": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not values.name(table.get("folder")):
        raise ConfigError(
            f'sandbox.build must be a folder, or a table with folder = "...", got {value!r}'
        )
    for name in table:
        if name not in BUILD:
            hint = did_you_mean(str(name), BUILD)
            raise ConfigError(
                f"sandbox.build has no setting {name!r}.{hint} It takes: {', '.join(BUILD)}"
            )
    for name, good, what in (
        ("dockerfile", values.name, "the name of a file"),
        ("args", values.texts, 'a table of texts, { NAME = "value" }'),
        ("target", values.name, "a stage's name"),
        ("timeout", values.number, "a number of seconds"),
    ):
        if name in table and not good(table[name]):
            raise ConfigError(f"sandbox.build.{name} must be {what}, got {table[name]!r}")
    try:
        return Build(**table)
    except ValueError as error:
        raise ConfigError(f"sandbox.build: {error}") from error
