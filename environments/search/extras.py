"""Packages that only some indexes need, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from vf.traces.errors import ConfigError


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
