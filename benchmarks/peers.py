"""Which contenders of a benchmark can run here: those whose packages are installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from harness import MISSING


def present(contenders: Sequence[str], needs: Mapping[str, str], install: str) -> list[str]:
    """Return the contenders whose package is installed; say how to install that of the others.

    With ``VF_REQUIRE_ALL``, as in CI, the benchmark ends instead if one is missing.

    Args:
        contenders: Those that were asked for.
        needs: The package that a contender needs, if it needs one.
        install: What follows ``pip install``; ``{}`` is the package.
    """
    missing = [name for name in contenders if name in needs and find_spec(needs[name]) is None]
    for package in dict.fromkeys(needs[name] for name in missing):
        out = ", ".join(name for name in missing if needs[name] == package)
        print(
            f"{package} is not installed, so this runs without {out}; for it: "
            f"pip install {install.format(package)}",
            file=sys.stderr,
        )
    if missing and os.environ.get("VF_REQUIRE_ALL"):
        raise SystemExit(MISSING)
    return [name for name in contenders if name not in missing]


def versions_of(*packages: str) -> dict[str, str | None]:
    """Return the installed versions, None for a package that is missing."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
