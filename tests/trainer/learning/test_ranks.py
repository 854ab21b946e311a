"""Several trainer processes take the steps that one would take."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.learning.rank_updates import samples, settings, updates
from vf.trainer.learning.ranks import balance

SCRIPT = Path(__file__).with_name("rank_updates.py")


def run_in_two_processes(how: str, path: Path) -> dict[str, Any]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), how, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = torch.load(path)
    return found


@pytest.mark.parametrize("how", ["lora", "all weights"])
def test_two_processes_take_the_same_steps_as_one(how: str, tmp_path: Path) -> None:
    got = run_in_two_processes(how, tmp_path / "two.pt")
    expected = updates(settings(how == "lora"))
    assert (expected["ranks"], got["ranks"]) == (1, 2)
    assert got["learning_rate"] == expected["learning_rate"]
    for theirs, ours in zip(expected["stats"], got["stats"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    assert got["parameters"].keys() == expected["parameters"].keys()
    for name, parameter in expected["parameters"].items():
        # Adam divides by the gradient's size, so where that is tiny its rounding shows: as far less
        # than one step of 1e-3.
        torch.testing.assert_close(got["parameters"][name], parameter, rtol=1e-4, atol=1e-5)


LEADER = """
import time
from tests.trainer.learning.rank_updates import samples, settings
from vf.traces.errors import TrainingError
from vf.trainer.learning.policy import Policy
policy = Policy("tiny", settings(True).args)
try:
    policy.update(samples(0, 4))
except TrainingError as error:
    print(error)
policy.ranks.stop()
"""
DESERTER = """
import os
from tests.trainer.learning.rank_updates import settings
from vf.trainer.learning.policy import Policy
Policy("tiny", settings(True).args).ranks.listen()
os._exit(9)  # in the middle of the update
"""


def test_a_rank_that_dies_in_an_update_is_an_error_in_the_others_at_once() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, code in enumerate((LEADER, DESERTER))
    ]
    assert processes[1].wait(120) == 9
    said, _ = processes[0].communicate(timeout=20)
    assert processes[0].returncode == 0
    assert "a trainer process is gone or hangs" in said


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_shares_hold_every_sample_once_and_are_nearly_equal(ranks: int) -> None:
    batch = samples(0, 40)
    shares = balance(batch, ranks)
    assert len(shares) == ranks
    assert sorted(id(sample) for share in shares for sample in share) == sorted(map(id, batch))
    tokens = [sum(map(len, share)) for share in shares]
    assert max(tokens) < 1.1 * sum(tokens) / ranks


def test_more_ranks_than_samples_leave_some_without() -> None:
    assert sorted(len(share) for share in balance(samples(0, 2), 4)) == [0, 0, 1, 1]
