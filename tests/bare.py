"""Programs that see only the packages that vf-rl without extras brings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECORDED = re.compile(r'^"?([^,"\n]*\.(?:py|so))"?,', re.MULTILINE)
# Runs before anything else: what only extras bring cannot be imported, as if it were not there.
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if path is None and name in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def run_bare(code: str, *argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python code where no extra is installed; what it prints and its errors are one text.

    Args:
        code: The code.
        argv: Its arguments.
        cwd: Where it runs.
    """
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(absent=of_extras()) + code, *argv],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "DOCKER_HOST": "unix:///nonexistent.sock"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )


@cache
def of_extras() -> set[str]:
    """Return the modules that are installed here and that vf-rl without extras does not bring."""
    every = {module for found in distributions() for module in own_modules(found.name)}
    return every - modules_of(PROJECT["dependencies"]) - {"vf", "vf_rl"}


def modules_of(requirements: list[str]) -> set[str]:
    """Return the top-level modules of installed packages, and of all that they require."""
    return {module for name in closure(tuple(requirements)) for module in own_modules(name)}


@cache
def closure(requirements: tuple[str, ...]) -> set[str]:
    """Return the installed packages that requirements name, with all that those require."""
    found: set[str] = set()
    todo = [(Requirement(text), frozenset[str]()) for text in requirements]
    seen = set()
    while todo:
        wanted, extras = todo.pop()
        applies = wanted.marker is None or any(
            wanted.marker.evaluate({"extra": extra}) for extra in extras or {""}
        )
        key = wanted.name, frozenset(wanted.extras)
        if not applies or key in seen:
            continue
        seen.add(key)
        try:
            needs = distribution(wanted.name).requires or []
        except PackageNotFoundError:
            continue
        found.add(wanted.name)
        todo += [(Requirement(text), frozenset(wanted.extras)) for text in needs]
    return found


@cache
def own_modules(name: str) -> set[str]:
    """Return the top-level modules of an installed package."""
    found = distribution(name)
    # `files` makes an object of each of the 10,000 that some packages have.
    record = found.read_text("RECORD")
    files = map(str, found.files or []) if record is None else RECORDED.findall(record)
    tops = {file.split("/")[0].split(".")[0] for file in files if file.endswith((".py", ".so"))}
    return {top for top in tops if top.isidentifier()}
