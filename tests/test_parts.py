"""What a mark promises: without its part a test is skipped, or fails where all are required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import PARTS

ROOT = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml")
MARKED = """
import pytest

{tests}
"""
TEST = """
@pytest.mark.{part}
def test_{part}(broken) -> None: ...
"""
CONFTEST = """
import pytest
from tests.conftest import *

@pytest.fixture
def broken():
    raise RuntimeError("a fixture was made although the part is missing")
"""


@pytest.mark.parametrize(("required", "outcome"), [("", "skipped"), ("1", "error")])
def test_a_marked_test_needs_its_part(tmp_path: Path, required: str, outcome: str) -> None:
    """On a machine that has none of the parts, before any fixture is made."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    tests = "".join(TEST.format(part=part) for part in PARTS)
    (tmp_path / "test_marked.py").write_text(MARKED.format(tests=tests))
    bare = {
        "PATH": str(tmp_path),
        "DOCKER_HOST": "unix:///nonexistent.sock",
        "VF_VLLM_PYTHON": str(tmp_path / "python"),
        "VF_TINKER_SDKS": str(tmp_path / "sdks"),
        "VF_REQUIRE_ALL": required,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [*PYTEST, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | bare,
        capture_output=True,
        text=True,
    )
    assert f"{len(PARTS)} {outcome}" in done.stdout
    assert "a fixture was made" not in done.stdout
