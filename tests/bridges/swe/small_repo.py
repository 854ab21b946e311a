"""A small repository with a bug, its fix, and the tests that tell one from the other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

BROKEN = '''\
"""Sums."""


def total(numbers):
    """Return the sum of numbers."""
    result = 0
    for number in numbers[1:]:
        result += number
    return result


def mean(numbers):
    """Return the mean of numbers."""
    return sum(numbers) / len(numbers)
'''
RIGHT = BROKEN.replace("numbers[1:]", "numbers")
OLD_TESTS = """\
import pytest

from sums import mean, total


def test_mean():
    assert mean([1, 2]) == 1.5


def test_nothing():
    assert total([]) == 0


@pytest.mark.parametrize("text", ["a b", "c"])
def test_names(text):
    assert text


@pytest.mark.xfail(reason="not done yet")
def test_xfail():
    assert mean([]) == 0
"""
NEW_TESTS = (
    OLD_TESTS
    + """

def test_total():
    assert total([1, 2, 3]) == 6


class TestTotals:
    def test_one(self):
        assert total([5]) == 5
"""
)
MUST_PASS = ["tests/test_sums.py::test_total", "tests/test_sums.py::TestTotals::test_one"]
KEEP_PASSING = [
    "tests/test_sums.py::test_mean",
    "tests/test_sums.py::test_nothing",
    "tests/test_sums.py::test_names[a",  # as the first word of a printed line
    "tests/test_sums.py::test_names[c]",
    "tests/test_sums.py::test_xfail",
]
CONFTEST = "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\n"


def git(folder: Path, *words: str, text: str | None = None) -> str:
    """Run git in a folder, and return what it printed."""
    named = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True, input=text
    )
    return done.stdout


def make(folder: Path) -> Path:
    """Make the repository, at the commit that is to be repaired."""
    (folder / "tests").mkdir(parents=True)
    (folder / "sums.py").write_text(BROKEN)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "setup.cfg").write_text("[metadata]\nname = sums\n")
    (folder / "tests" / "test_sums.py").write_text(OLD_TESTS)
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Add sums")
    (folder / "notes.txt").write_text("no part of the repository\n")
    return folder


def patch_of(folder: Path, changes: dict[str, str | None]) -> str:
    """Return the patch that writes some files of a repository, or removes them."""
    for path, text in changes.items():
        place = folder / path
        if text is None:
            place.unlink()
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    git(folder, "add", "-A", "--", *changes)
    patch = git(folder, "diff", "--cached", "--binary")
    git(folder, "reset", "-q", "--hard")
    return patch


def row(folder: Path, **fields: Any) -> dict[str, Any]:
    """Return a row as SWE-bench has it, for the repository in a folder."""
    return {
        "instance_id": "acme__sums-1",
        "repo": "acme/sums",
        "base_commit": git(folder, "rev-parse", "HEAD").strip(),
        "problem_statement": "total([1, 2, 3]) is 5.",
        "patch": patch_of(folder, {"sums.py": RIGHT}),
        "test_patch": patch_of(folder, {"tests/test_sums.py": NEW_TESTS}),
        "FAIL_TO_PASS": json.dumps(MUST_PASS),
        "PASS_TO_PASS": json.dumps(KEEP_PASSING),
        "version": "1.0",
        **fields,
    }
