"""Several trainer processes take the steps on images that one would take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.inference.vision_models import save_family
from tests.trainer.learning.sharding import image_rank_updates

LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "how"), [("qwen3_vl", "lora"), ("idefics3", "all weights")])
def test_two_processes_take_the_same_steps_as_one(family: str, how: str, tmp_path: Path) -> None:
    save_family(family, tmp_path / "model")
    alone = image_rank_updates.updates(tmp_path / "model", how == "lora")
    path = tmp_path / "found.pt"
    script = [image_rank_updates.__file__, str(tmp_path / "model"), how, str(path)]
    done = subprocess.run(
        [sys.executable, *LAUNCHER, *script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(path, weights_only=True)
    assert (alone["ranks"], found["ranks"]) == (1, 2)
    assert found["norms"] == pytest.approx(alone["norms"], rel=1e-4)
    for name, value in alone["parameters"].items():
        assert torch.allclose(found["parameters"][name], value, atol=1e-6), name
    for ours, theirs in zip(alone["logprobs"], found["logprobs"], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
