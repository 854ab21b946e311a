"""What a follower's memory grows by while it gets its weights and resumes; run under a launcher.

rank_memory.py MODEL FOLDER: if FOLDER has no checkpoint, one is written after an update; else it is
loaded. Rank 1 leaves what it measured, in bytes, in FOLDER/memory.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from transformers import AutoTokenizer

from tests.trainer.learning.sharding.rank_updates import samples
from vf.inference.model_files import load_module, resolve_model
from vf.trainer.follower import take_part
from vf.trainer.learning import policy as policy_module
from vf.trainer.learning.model import self_test
from vf.trainer.learning.policy import Policy
from vf.trainer.processes.launch import world
from vf.trainer.saving.checkpoint import (
    Progress,
    load_checkpoint,
    save_checkpoint,
)
from vf.trainer.saving.checkpoint_files import latest_checkpoint
from vf.trainer.settings.config import TrainerArgs


class Growth:
    """How far the process's memory rises above where it is now."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        self._before = _memory("VmRSS")

    def peak(self) -> int:
        """Return the most bytes that it has had on top of those at first."""
        return _memory("VmHWM") - self._before


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def lead(policy: Policy, folder: Path) -> None:
    """Resume, or train a step and save it."""
    if (found := latest_checkpoint(folder)) is not None:
        load_checkpoint(found, policy)
    else:
        policy.update(samples(0, 4))
        tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
        save_checkpoint(folder, policy, tokenizer, Progress(1, 0.0))
    policy.ranks.stop()


def main() -> None:
    """Be one of the processes."""
    model, folder = sys.argv[1], Path(sys.argv[2])
    args = TrainerArgs(
        use_lora=False, bf16=False, micro_batch_tokens=128, max_seq_len=64, max_prompt_len=16
    )
    set_seed(0)
    rank = world().rank
    load_module("tiny", torch.float32)  # what is imported on the way does not count
    loading, loaded = Growth(), list[int]()
    choose = self_test.choose_forward

    def then(*args: Any, **options: Any) -> Any:
        loaded.append(loading.peak())
        return choose(*args, **options)

    # The first thing that computes.
    policy_module.choose_forward = then  # type: ignore[attr-defined]
    policy = Policy(model, args)
    if rank == 0:
        lead(policy, folder)
        return
    since = Growth()
    take_part(policy)
    found = {"loaded": loaded[0], "since": since.peak()}
    (folder / "memory.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
