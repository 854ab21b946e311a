"""A child that trains, or resumes training, until it ends or is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vf
from vf.environments.environment import Split

STEPS = 8


class Noise(vf.Environment):
    """Two turns; the reward depends on what is said."""

    max_turns = 2
    rubric = vf.Rubric(outcome=lambda trace: len(set(trace.reply)) % 4 / 3)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(10):
            yield vf.Task(f"{split}-{index}", f"Say {index}.")

    async def step(self, message: vf.Message) -> vf.Step:
        return vf.Step("Again.")


def train(folder: Path, args: dict[str, Any]) -> None:
    """Run to the end from wherever the folder is."""
    import logging

    from vf.trainer.preflight import preflight
    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.run.run_folder import RunFolder
    from vf.trainer.settings.load_config import parse_config

    logging.disable()
    vf.register("test-noise", Noise)
    usual = {
        "max_steps": STEPS,
        "batch_size": 8,
        "rollouts_per_example": 4,
        "max_tokens": 6,
        "max_prompt_len": 192,
        "max_seq_len": 384,
        "micro_batch_tokens": 2048,
        "learning_rate": 1e-3,
        "lora_dropout": 0.1,
        "eval_steps": 2,
        "eval_examples": 4,
        "save_steps": 1,
        "save_total_limit": 2,
        "max_refill": 0.5,
        "rest_hard": 1,
    }
    raw = {
        "model": "tiny",
        "env": {"id": "test-noise"},
        "trainer": {"args": usual | args},
    }
    run = RunFolder(folder)
    resuming = folder.exists()
    run.open() if resuming else run.create()
    config, _ = parse_config(raw)
    with RLTrainer(preflight(config), run) as trainer:
        if resuming:
            trainer.resume()
        trainer.train()
