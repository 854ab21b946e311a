"""Checks of the values in an environment's table ``sandbox``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from vf.runtime.errors import ConfigError
from vf.sandbox.contract import Limits

LIMITS = [field.name for field in fields(Limits)]


def require(
    settings: Mapping[str, Any], good: Callable[[Any], bool], what: str, *names: str
) -> None:
    """Check settings that are given.

    Args:
        settings: The table.
        good: A predicate for valid values.
        what: The description of a valid value.
        names: The settings to check.

    Raises:
        ConfigError: If one is invalid; names it.
    """
    for name in names:
        if name in settings and not good(settings[name]):
            raise ConfigError(f"sandbox.{name} must be {what}, got {settings[name]!r}")


def require_counts(settings: Mapping[str, Any], *names: str) -> None:
    """Check whole numbers of at least 1; raises ConfigError."""
    require(
        settings,
        lambda value: type(value) is int and value >= 1,
        "a whole number, at least 1",
        *names,
    )


def number(value: Any) -> bool:
    """Return whether it is a number."""
    return type(value) in (int, float)


def name(value: Any) -> bool:
    """Return whether it is a text that is not empty."""
    return isinstance(value, str) and value != ""


def names(value: Any) -> bool:
    """Return whether it is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def texts(value: Any) -> bool:
    """Return whether it is a table of texts."""
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(text, str) for key, text in value.items()
    )
