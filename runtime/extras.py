"""Packages that only some parts need: imported when they are needed, and of a known version."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vf.runtime.errors import ConfigError


def load(module: str, extra: str) -> Any:
    """Import an optional package and return it.

    Raises:
        ConfigError: It is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(
            f"this needs the package {package!r}: pip install 'vf-rl[{extra}]' ({error})"
        ) from error


def check_version(package: str, extra: str, least: str, below: str) -> tuple[int, ...]:
    """See that an installed package is of a version that is supported, and return that.

    Args:
        package: Its name on PyPI.
        extra: The extra of vf-rl that installs it.
        least: The first version that is supported.
        below: The first one after it that is not.

    Raises:
        ConfigError: It is of another one, or not installed; says which are supported.
    """
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise ConfigError(
            f"this needs the package {package!r}: pip install 'vf-rl[{extra}]'"
        ) from error
    if not _numbers(least) <= _numbers(found) < _numbers(below):
        raise ConfigError(
            f"the package {package} {found} is not supported, but {least} and later, before "
            f"{below}, are: pip install 'vf-rl[{extra}]' '{package}>={least},<{below}'"
        )
    return _numbers(found)


def _numbers(written: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", written)[:3])
