"""The memory that updates of a random model really take, to be run as a script of its own."""

from __future__ import annotations

import gc
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.memory.trainer_memory import Shape, predict
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs


def resident(name: str) -> int:
    """Return VmRSS, the bytes in use now, or VmHWM, the most of them so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def samples(tokens: int, count: int, vocabulary: int) -> list[Sample]:
    """Return samples without a common beginning, an eighth of them prompt.

    Every other one is a token shorter, so that rows which are padded need a mask.
    """
    rng = random.Random(0)
    made = []
    for place in range(count):
        branch = Branch()
        branch.add_context([rng.randrange(vocabulary) for _ in range(tokens // 8)], 0)
        ids = [rng.randrange(vocabulary) for _ in range(tokens - tokens // 8 - place % 2)]
        branch.add_sampled(ids, [-6.0] * len(ids), [0] * len(ids), 0)
        made.append(Sample(branch, rng.uniform(-1, 1)))
    return made


def measure(folder: str, model: dict[str, Any], args: TrainerArgs, budget: int) -> dict[str, Any]:
    """Take a short optimizer step, then one of two full micro-batches."""
    config = getattr(transformers, model.pop("config"))(**model)
    made = AutoModelForCausalLM.from_config(config)
    shape = Shape.of(config, made)
    made.save_pretrained(folder)
    # Imports and first uses of libraries are no part of it.
    tiny = Policy("tiny", TrainerArgs())
    tiny.update(samples(64, 2, 500))
    del made, tiny
    gc.collect()
    before = resident("VmRSS")
    policy = Policy(folder, args)
    batch = samples(budget // 4, 8, config.get_text_config().vocab_size)
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is what is in use now
    policy.update(batch[:1])  # from here on there are Adam's moments
    policy.update(batch)
    peak = resident("VmHWM") - before
    return {"peak": peak, "parts": predict(shape, args, budget)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, model, settings = sys.argv[1:]
    given = json.loads(settings)
    budget = given["micro_batch_tokens"]
    print(json.dumps(measure(folder, json.loads(model), TrainerArgs(**given), budget)))
