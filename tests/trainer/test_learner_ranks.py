"""A loop of one's own in two processes takes the steps that it takes in one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.learner_ranks import loop

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("learner_ranks.py")
ROOT = Path(__file__).parents[2]
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def launched(script: Path, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *LAUNCH, str(script), str(path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=250, check=False
    )


def test_two_processes_take_the_same_steps_as_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    expected = asyncio.run(loop(tmp_path / "one"))
    done = launched(SCRIPT, tmp_path / "two.pt")
    assert done.returncode == 0, done.stderr
    got = torch.load(tmp_path / "two.pt")
    assert (expected["ranks"], got["ranks"]) == (1, 2)
    assert got["steps"] == expected["steps"] == 3
    for ours, theirs in zip(got["metrics"], expected["metrics"], strict=True):
        del ours["computed_tokens"], theirs["computed_tokens"]  # each rank has its own prefixes
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6, nan_ok=True)
    for name, parameter in expected["parameters"].items():
        torch.testing.assert_close(got["parameters"][name], parameter, rtol=1e-4, atol=1e-5)
    for mine, one in zip(got["forward"], expected["forward"], strict=True):
        torch.testing.assert_close(mine, one, rtol=1e-4, atol=1e-4)


BROKEN = """
import sys
import vf
from tests.trainer.learner_ranks import SETTINGS, samples

def breaks(arrays):
    raise ValueError("no such thing")

with vf.Learner("tiny", **SETTINGS) as learner:
    try:
        learner.forward_backward(samples(0, 4), loss_fn=breaks)
    except vf.VfError as error:
        print("first:", error)
    learner.forward_backward(samples(0, 4))
"""


def test_a_step_that_is_interrupted_ends_all_processes(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    done = launched(script, tmp_path)
    assert done.returncode != 0
    assert "first: the loss 'breaks' raised ValueError: no such thing" in done.stdout
    assert "a step was interrupted, and its trainer processes no longer agree" in done.stderr
