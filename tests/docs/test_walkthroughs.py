"""Walk-throughs whose steps need each other, done as a reader would do them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

pytestmark = pytest.mark.slow

EVAL = "vf-rl eval verifiers:spell-out"
TRAIN = "vf-rl run.toml"


def run(folder: Path, command: str, *more: str, path: Sequence[Path] = (ROOT,)) -> str:
    """Run a command that the page shows, cut short by more arguments."""
    done = subprocess.run(
        # -P: a script of its own does not find what is in the working directory, either.
        [sys.executable, "-P", "-m", "vf.trainer.commands.main", *command.split()[1:], *more],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_environment_of_verifiers_is_written_measured_and_trained(tmp_path: Path) -> None:
    page = blocks(ROOT / "docs" / "verifiers.md")
    [commands] = [block.text.splitlines() for block in page if "vf-rl eval" in block.text]
    assert commands == [EVAL, TRAIN]
    python = next(block.text for block in page if block.kind == "python")
    done = subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=False)
    assert done.returncode == 0
    toml = next(block.text for block in page if block.kind == "toml")
    (tmp_path / "run.toml").write_text(toml)

    path = (tmp_path, ROOT)  # the page says so
    said = run(tmp_path, EVAL, "-n", "2", "-r", "1", path=path)
    assert "verifiers_reward" in said

    run(tmp_path, TRAIN, "--set", "max_steps=2", "--set", "run_name=walk", path=path)
    log = (tmp_path / "runs" / "walk" / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in log]
    assert [line["step"] for line in lines][-1] == 2
    assert lines[-1]["rollouts/scored"] == 16


def test_an_environment_that_one_comes_with_is_measured(tmp_path: Path) -> None:
    page = blocks(ROOT / "docs" / "coming-from.md")
    python = next(block.text for block in page if block.kind == "python")
    assert "`digits_v0.py`" in (ROOT / "docs" / "coming-from.md").read_text()
    (tmp_path / "digits_v0.py").write_text(python)
    [command] = [
        line for block in page for line in block.text.splitlines() if line.startswith("vf-rl eval")
    ]
    assert "verifiers_reward" in run(tmp_path, command, "-n", "2", "-r", "1")
