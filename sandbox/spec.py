"""The spec of one task's sandbox, on top of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from vf.sandbox.contract import Limits

Pairs = tuple[tuple[str, str], ...]
MADE_FROM = ("image", "build", "compose", "compose_main", "compose_variables")


@dataclass(frozen=True, slots=True)
class Build:
    """An image that is built from a folder, once for the same content.

    Attributes:
        folder: The build's context.
        dockerfile: Its Dockerfile, relative to the folder.
        args: Values of the Dockerfile's ``ARG``s; a mapping is turned into sorted pairs.
        target: The stage to stop at; None for the last one.
        timeout: Seconds that the build may take.

    Raises:
        ValueError: If the timeout is not positive.
    """

    folder: Path
    dockerfile: str = "Dockerfile"
    args: Pairs | Mapping[str, str] = ()
    target: str | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Normalize the fields, so that it can be a key, and check them."""
        object.__setattr__(self, "folder", Path(self.folder).absolute())
        object.__setattr__(self, "args", pairs(self.args))
        if not self.timeout > 0:
            raise ValueError(f"timeout must be positive, got {self.timeout!r}")


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The spec of a task's sandbox. None leaves a field to the source of sandboxes.

    Equal specs share a pool of warm sandboxes. At most one of ``image``, ``build`` and ``compose``
    is given.

    Attributes:
        image: The name of an image, or what :meth:`~vf.sandbox.contract.Sandbox.snapshot` returned.
        build: A folder from which the image is built.
        compose: A Compose file. One of its services becomes the sandbox; the others run alongside
            it, in the episode's own network.
        compose_main: The service that becomes the sandbox.
        compose_variables: Values of the variables in it; a mapping is turned into sorted pairs.
        writable: Whether the image's own files can be changed: the container's root is then a
            writable layer of at most ``limits.disk`` bytes. Otherwise only the working directory
            and ``/tmp`` are.
        user: The user that code runs as by default, by name or number. None: an unprivileged user
            of the sandbox's own; with a writable root, the image's user. No user has any
            capability, ``root`` neither.
        workdir: The working directory. None: ``/workspace``; with a writable root, the image's.
        env: Environment variables of everything that runs inside, in addition to the image's; a
            mapping is turned into sorted pairs.
        limits: Its limits.
        allow: Hosts that can be reached through a proxy, each as ``host``, ``*.host``, an IP
            address or a range of them, all with an optional ``:port``; ``*`` is any host. Nothing
            else can be reached.

    Raises:
        ValueError: If more than one of image, build and compose is given.
    """

    image: str | None = None
    build: Build | None = None
    compose: Path | None = None
    compose_main: str = "main"
    compose_variables: Pairs | Mapping[str, str] = ()
    writable: bool | None = None
    user: str | None = None
    workdir: str | None = None
    env: Pairs | Mapping[str, str] = ()
    limits: Limits | None = None
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields, and normalize them, so that it can be a key."""
        given = [name for name in ("image", "build", "compose") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"a sandbox is made from one of {' and '.join(given)}, not both")
        if self.compose is not None:
            object.__setattr__(self, "compose", Path(self.compose).absolute())
        object.__setattr__(self, "env", pairs(self.env))
        object.__setattr__(self, "compose_variables", pairs(self.compose_variables))
        object.__setattr__(self, "allow", tuple(self.allow))


def pairs(values: Iterable[tuple[str, str]] | Mapping[str, str]) -> Pairs:
    """Return variables as sorted pairs, so that they can be part of a key."""
    return tuple(sorted(dict(values).items()))


def whole(spec: SandboxSpec | None, own: SandboxSpec) -> SandboxSpec:
    """Return a task's spec on top of that of the settings.

    Args:
        spec: The task's spec.
        own: The spec of the settings.
    """
    if spec is None:
        return own
    default_spec = SandboxSpec()
    defaults = {field.name: getattr(default_spec, field.name) for field in fields(SandboxSpec)}
    given: dict[str, Any] = {
        name: getattr(spec, name)
        for name, default in defaults.items()
        if getattr(spec, name) != default
    }
    if given.keys() & {"image", "build", "compose"}:  # in place of all that the settings have
        given = {name: defaults[name] for name in MADE_FROM} | given
    return replace(own, **given | {"env": {**dict(own.env), **dict(spec.env)}})
