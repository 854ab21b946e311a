"""Import what is heavy when a test first uses it: all tests are collected in every process."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


def needs(package: str) -> None:
    """Skip the tests of the calling file where a package is missing, without importing it."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install -e '.[test]'", allow_module_level=True)


class Late:
    """Stands for a module; the module's file skips its tests where the package is missing.

    Args:
        name: The module.
        package: What has to be installed for it; by default, the first part of the name.
    """

    def __init__(self, name: str, package: str | None = None) -> None:
        needs(package or name.split(".")[0])
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # what collecting asks every object for
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
