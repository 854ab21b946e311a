"""The project of docs/testing.md passes its own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

FILES = {
    block.text.partition("\n")[0].removeprefix("# "): block.text
    for block in blocks(ROOT / "docs" / "testing.md")
    if block.kind == "python"
}


@pytest.mark.slow
@pytest.mark.gate
def test_the_project_passes(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "18 passed" in done.stdout


def test_the_first_tests_take_thirty_lines() -> None:
    assert len([line for line in FILES["test_shop.py"].splitlines()[1:] if line]) <= 30
