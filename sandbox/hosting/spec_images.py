"""The images that an effective spec needs, and a check of such a spec."""

from __future__ import annotations

from dataclasses import replace

from vf.runtime.errors import ConfigError
from vf.sandbox.container.hardening import Profile, profile_for
from vf.sandbox.images.context import check_build
from vf.sandbox.services.allow import AllowList
from vf.sandbox.services.compose import Compose, read_compose
from vf.sandbox.spec import Build, SandboxSpec


def check_spec(spec: SandboxSpec, base: Profile) -> None:
    """Check that containers can be made from a spec, as far as possible without an engine.

    Args:
        spec: The effective spec: what :func:`~vf.sandbox.spec.whole` returned.
        base: The default settings, which it may override.

    Raises:
        ConfigError: If they cannot be made; names the field.
    """
    if spec.build is not None:
        check_build(spec.build)
    try:
        AllowList(spec.allow)
    except ConfigError as error:  # it begins with the field's name
        raise ConfigError(f"sandbox_spec.{error}") from error
    try:
        _compose_of(spec)
    except ConfigError as error:
        raise ConfigError(f"sandbox_spec.compose: {error}") from error
    try:
        profile_for(replace(spec, build=None, compose=None), base)
    except ValueError as error:
        raise ConfigError(f"sandbox_spec: {error}") from error


def images_of(spec: SandboxSpec) -> list[Build | str]:
    """Return the images that a spec needs, by name or by build.

    Raises:
        ConfigError: If its Compose file requires what is not supported.
    """
    compose = _compose_of(spec)
    if compose is None:
        return [image for image in (spec.build, spec.image) if image is not None]
    services = (compose.main, *compose.sides)
    return [service.build or service.image or "" for service in services]


def _compose_of(spec: SandboxSpec) -> Compose | None:
    if spec.compose is None:
        return None
    return read_compose(spec.compose, dict(spec.compose_variables), main=spec.compose_main)
