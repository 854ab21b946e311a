"""A child that trains, or resumes training, until it ends or is killed; and its parent."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vf
from vf.environments.environment import Split

STEPS = 8
# Bits that no other rollout changes: 64 of them at once.
DETERMINISTIC = {
    "deterministic": True,
    "max_concurrent": 64,
    "batch_size": 64,
    "rollouts_per_example": 8,
    "max_tokens": 12,
    "lora_dropout": 0.0,
}


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


def children() -> Any:
    """Return what makes children that need not import everything again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vf.trainer.rl_trainer", "tests.trainer.saving.kill_run"])
    return context


def run_through(
    server: Any,
    folder: Path,
    args: dict[str, Any],
    kills: int,
    seed: int,
    *,
    within: float = 0.4,
    patience: float = 120.0,
) -> int:
    """Run to the end, with kills on the way; return how many there were.

    Args:
        server: Of :func:`children`.
        folder: Of the run.
        args: Its ``[trainer.args]``, over the usual ones.
        kills: Most kills.
        seed: Of their moments.
        within: Seconds from a child's first sign of life in which it is killed.
        patience: Seconds that the last child has.

    Raises:
        AssertionError: A child ended badly by itself.
    """
    rng, done = random.Random(seed), 0
    while True:
        child = server.Process(target=train, args=(folder, args))
        child.start()
        if done < kills:
            # From the moment that it does something: a kill while it loads the model tests little.
            before = _state(folder)
            while child.is_alive() and _state(folder) == before:
                time.sleep(0.01)
            child.join(rng.uniform(0.0, within))
            if child.is_alive():
                child.kill()
                done += 1
        child.join(patience)
        if child.exitcode == 0:
            return done
        assert child.exitcode == -9, f"it failed by itself: {child.exitcode}"


def _state(folder: Path) -> tuple[Any, ...]:
    files = [*folder.glob("traces/*.jsonl"), *folder.glob("metrics.jsonl")]
    return tuple(sorted((file.name, _size(file)) for file in files))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return -1  # put away meanwhile
