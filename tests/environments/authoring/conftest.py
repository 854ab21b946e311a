"""A clean virtual environment with vf-rl installed as a user would have it.

What is clean: the venv is new, holds no packages of its own, and gets vf-rl as a built wheel, so
that a template which is not shipped, or a command which is not declared, is missed. What is
shared: third-party packages (torch and the like) are seen through a ``.pth`` file in the
packages of the Python that runs the tests. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
ROOMS = ("vf", *SETUPTOOLS["package-dir"].values())
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q")


@dataclass(frozen=True, slots=True)
class CleanVenv:
    """A virtual environment and a folder to work in."""

    folder: Path
    work: Path

    def run(self, command: str, *args: str, code: int = 0, timeout: float = 280) -> str:
        """Run one of its commands in the folder, and return all that it printed."""
        return _run(
            [str(self.folder / "bin" / command), *args], cwd=self.work, code=code, timeout=timeout
        )

    def install(self, *what: str, cwd: Path | None = None) -> None:
        """Install into it, with the outer pip."""
        python = str(self.folder / "bin" / "python")
        _run(
            [sys.executable, "-m", "pip", "--python", python, "install", *OFFLINE, *what],
            cwd=cwd or self.work,
        )


@pytest.fixture(scope="session")
def clean_venv(tmp_path_factory: pytest.TempPathFactory) -> CleanVenv:
    """A venv with vf-rl's wheel in it."""
    folder = tmp_path_factory.mktemp("clean")
    venv = CleanVenv(folder / "venv", folder / "work")
    venv.work.mkdir()
    source = folder / "source"
    source.mkdir()
    for name in ROOMS:  # a copy, for building writes into the source
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "vf_rl.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    _run([sys.executable, "-m", "venv", "--without-pip", str(venv.folder)], cwd=folder)
    inner = sysconfig.get_path("purelib", "venv", {"base": str(venv.folder)})
    outer = sysconfig.get_path("purelib")
    Path(inner, "third_party.pth").write_text(f"{outer}\n")
    venv.install(".", cwd=source)
    seen = venv.run("python", "-c", "import vf; print(vf.__file__)").strip()
    assert Path(seen).is_relative_to(venv.folder), "the checkout is seen instead of the wheel"
    return venv


def _run(command: Sequence[str], *, cwd: Path, code: int = 0, timeout: float = 280) -> str:
    # Without PYTHONPATH, or else the checkout would be seen instead of the wheel.
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, f"{' '.join(command)} gave {done.returncode}:\n{done.stdout}"
    return done.stdout
