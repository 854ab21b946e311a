"""A few updates of the tiny model, to be run in one process or as a script under a launcher."""

from __future__ import annotations

import importlib
import math
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer

from vf.inference.model_files import resolve_model
from vf.traces.trace import Branch
from vf.trainer.follower import follow
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.model import head
from vf.trainer.learning.policy import Policy
from vf.trainer.processes.launch import world, zero_stage
from vf.trainer.saving.checkpoint import Progress, load_checkpoint, save_checkpoint
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import parse_config


def settings(use_lora: bool, seed: int = 0, bf16: bool = False) -> Config:
    reference = {
        "loss_normalisation": "sequence",
        "kl_penalty_coef": 0.1,
        "kl_penalty_type": "advantage",
        "reference_update_steps": 2,
        "reference_update_rate": 0.5,
        "importance_sampling_mode": "sequence_truncate",
        "observation_loss_coef": 0.1,
        "entropy_coef": 0.01,
        "teacher_model": "tiny",
        "teacher_loss": "forward_kl",
    }
    args = {
        "use_lora": use_lora,
        **(reference if use_lora else {}),
        "seed": seed,
        "bf16": bf16,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "eps": 1e-5,  # at 1e-8 the rounding of a gradient near 0 would show as a step of its own
        "lr_scheduler_type": "linear",
        "max_steps": 8,
        "max_seq_len": 64,
        "max_prompt_len": 16,
        "micro_batch_tokens": 64,
        "max_grad_norm": 0.5,
    }
    return parse_config({"model": "tiny", "env": {"id": "none"}, "trainer": {"args": args}})[0]


def samples(seed: int, count: int) -> list[Sample]:
    """Return samples of very different lengths; the long ones begin alike."""
    rng = random.Random(seed)
    stem = [rng.randrange(512) for _ in range(30)]
    out = []
    for _ in range(count):
        length = rng.randint(6, 60)
        mask = [0, 0, *(rng.randint(0, 1) for _ in range(length - 3)), 1]
        ids = [rng.randrange(512) for _ in range(length)]
        if length > len(stem):
            ids[: len(stem)] = stem
        branch = Branch(ids, mask, [-6.0 * m for m in mask], [0] * length, [0] * length)
        out.append(Sample(branch, rng.uniform(-1, 1)))
    return out


def updates(config: Config, folder: Path) -> dict[str, Any]:
    """Train, and return what came of it; a checkpoint is left in the folder."""
    set_seed(config.args.seed)
    policy = Policy(config.model, config.args)
    stats = [policy.update(samples(step, 7)) for step in range(3)]
    stats.append(policy.update(samples(3, 1)))  # with nothing for a second rank
    known = policy.with_old_logprobs(samples(7, 5))
    stats.append(policy.update(samples(6, 5)))
    stats.append(policy.update(known))
    taught = policy.with_teacher_logprobs(samples(8, 5))
    stats.append(policy.update(taught))
    broken = samples(4, 4)
    broken[0].branch.logprobs[-1] = -math.inf
    assert policy.update(broken).skipped
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    checkpoint = save_checkpoint(folder, policy, tokenizer, Progress(7, 0.0))
    policy.update(samples(6, 7))
    load_checkpoint(checkpoint, policy)
    stats.append(policy.update(samples(5, 7)))
    save_checkpoint(folder, policy, tokenizer, Progress(6, 0.0))
    found = {
        "ranks": policy.ranks.count,
        "held": sorted({_held(each) for each in policy.model.parameters()}),
        "stats": [asdict(each) for each in stats],
        "parameters": policy.weights.trainable_state(),
        "published": {
            name: tensor.cpu().clone() for name, tensor in policy.weights.named_tensors()
        },
        "logprobs": policy.logprobs([1, 2, 3], [4, 5, 6]),
        "learning_rate": policy.learning_rate,
    }
    policy.ranks.stop()
    return found


def _held(parameter: torch.nn.Parameter) -> str:
    """Say how this process holds a parameter while nothing computes."""
    if isinstance(parameter, DTensor):
        return "fsdp2"
    return "zero3" if hasattr(parameter, "ds_id") and not parameter.numel() else "whole"


def main() -> None:
    """Do it under a launcher; rank 0 writes to the file that is named."""
    how, path = sys.argv[1], Path(sys.argv[2])
    lora, bf16 = how.startswith("lora"), how.endswith("bf16")
    head.CHUNK_LOGITS = 8 * 512  # so that a rank has more chunks than another
    if zero_stage() is not None and not torch.cuda.is_available():
        # DeepSpeed would compile an extension for sums in shared memory; gloo works without it.
        ops = importlib.import_module("deepspeed.ops")
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if rank := world().rank:
        follow(settings(lora, rank, bf16))  # starts from other weights, and must get rank 0's
    else:
        torch.save(updates(settings(lora, 0, bf16), path.parent), path)


if __name__ == "__main__":
    main()
