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
        good: Whether a value is right.
        what: What it must be.
        names: Which settings.

    Raises:
        ConfigError: One is not right; names it.
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
    """Whether it is a number."""
    return type(value) in (int, float)


def name(value: Any) -> bool:
    """Whether it is a text that is not empty."""
    return isinstance(value, str) and value != ""


def names(value: Any) -> bool:
    """Whether it is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def texts(value: Any) -> bool:
    """Whether it is a table of texts."""
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(text, str) for key, text in value.items()
    )
