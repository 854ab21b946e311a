"""Trains with tinker-cookbook in one of the library's environments, by the cookbook's interpreter.

python train_program.py URL MODEL FOLDER STEPS
"""

from __future__ import annotations

import asyncio
import os
import sys

os.environ |= {"TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0"}

import tinker_cookbook.rl.train as cookbook

import vf

url, model, folder, steps = sys.argv[1:]
builder = vf.to_tinker(
    vf.make("calculator", max_operand=20),
    model,
    groups_per_batch=2,
    group_size=4,
    eval_examples=4,
    max_seq_len=256,
    max_tokens=24,
)
config = cookbook.Config(
    dataset_builder=builder,
    model_name=model,
    recipe_name="calculator",
    renderer_name="role_colon",
    learning_rate=1e-3,
    max_tokens=24,
    lora_rank=16,
    log_path=folder,
    base_url=url,
    eval_every=2,
    save_every=1,
    max_steps=int(steps),
)
asyncio.run(cookbook.main(config))
