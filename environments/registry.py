"""Environments by name: registered in code, or found among installed packages."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vf.environments.environment import Environment
from vf.traces.errors import ConfigError
from vf.traces.suggest import did_you_mean

ENTRY_POINT_GROUP = "vf.environments"
Factory = Callable[..., Environment]

_registered: dict[str, str | Factory] = {}


def register(id: str, factory: str | Factory) -> None:
    """Register an environment under a name.

    Args:
        id: The name that :func:`make` and the TOML's ``[env] id`` use.
        factory: A class or function that returns an environment, or ``"module:name"`` of one,
            imported when it is first made.

    Raises:
        ConfigError: The name is taken by something else.
    """
    if _registered.get(id, factory) != factory:
        raise ConfigError(f"environment {id!r} is registered already, as {_registered[id]}")
    _registered[id] = factory


def registered() -> list[str]:
    """Return the names of all environments that can be made, sorted."""
    return sorted({*_registered, *entry_points(group=ENTRY_POINT_GROUP).names})


def make(id: str, **kwargs: Any) -> Environment:
    """Make an environment by name.

    Example::

        env = vf.make("calculator", max_operations=2)

    Raises:
        ConfigError: No such environment (the nearest names are shown), it cannot be imported,
            or it does not take one of the arguments.
    """
    factory = _find(id)
    try:
        inspect.signature(factory).bind(**kwargs)
    except TypeError as error:
        parameters = inspect.signature(factory).parameters
        unknown = next((name for name in kwargs if name not in parameters), "")
        takes = ", ".join(parameters) or "no arguments"
        raise ConfigError(
            f"environment {id!r}: {error}.{did_you_mean(unknown, parameters)} It takes: {takes}"
        ) from None
    environment = factory(**kwargs)
    if not isinstance(environment, Environment):
        raise ConfigError(
            f"environment {id!r} gave a {type(environment).__name__}, not a vf.Environment"
        )
    environment.id = id
    return environment


def _find(id: str) -> Factory:
    if id in _registered:
        target = _registered[id]
        return target if callable(target) else _load(id, target)
    found = list(
        {point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=id)}.values()
    )
    if len(found) > 1:
        sources = ", ".join(_source(point) for point in found)
        raise ConfigError(f"two installed packages offer an environment {id!r}: {sources}")
    if found:
        return _load(id, found[0].value)
    names = registered()
    raise ConfigError(
        f"there is no environment {id!r}.{did_you_mean(id, names)} "
        f"Known: {', '.join(names) or 'none'}"
    )


def _load(id: str, target: str) -> Factory:
    module, _, name = target.partition(":")
    if not name:
        raise ConfigError(f"environment {id!r}: {target!r} must be of the form 'module:name'")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"environment {id!r}: cannot load {target!r}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"environment {id!r}: {target!r} is not a class or function")
    return factory  # type: ignore[no-any-return]


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist else 'unknown'} ({point.value})"
