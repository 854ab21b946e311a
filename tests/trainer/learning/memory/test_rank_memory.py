"""With FSDP2, a follower's memory stays below the whole model's while it loads and resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainer.learning.sharding.test_ranks import launcher_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc"),
]

SCRIPT = Path(__file__).with_name("rank_memory.py")


def measure(model: Path, folder: Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", *launcher_command("fsdp2", folder), str(SCRIPT), model, folder],
        capture_output=True,
        text=True,
        timeout=200,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[4]),
            # What was freed would otherwise stay with the process, and be used again unseen.
            "MALLOC_MMAP_THRESHOLD_": "65536",
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads((folder / "memory.json").read_text())
    return found


def test_a_follower_never_holds_the_whole_model(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1536, num_hidden_layers=10, vocab_size=512
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    whole = sum(parameter.nbytes for parameter in model.parameters())
    assert 120e6 < whole < 160e6
    model.save_pretrained(tmp_path / "model")
    del model
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    loaded = measure(tmp_path / "model", folder)["loaded"]
    resumed = measure(tmp_path / "model", folder)["since"]
    print(f"the whole model {whole:,}, loaded {loaded:,}, resumed {resumed:,} more bytes")
    assert loaded < 0.75 * whole, "a half of the weights"
    assert resumed < 0.75 * 2 * whole, "a half of each of the two moments, and no weights again"
