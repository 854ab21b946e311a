"""A few updates of a tiny model that sees, to be run in one process or under a launcher."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed

from tests.inference.vision_models import picture
from vf.inference.model_files import Checkpoint
from vf.inference.models.local_model import load_renderer
from vf.inference.rendering.vision import images_of
from vf.inference.settings import EmbeddedSettings
from vf.traces.messages import Message
from vf.trainer.follower import follow
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.policy import Policy
from vf.trainer.processes.launch import world
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import parse_config


def settings(model: Path, use_lora: bool, seed: int = 0) -> Config:
    args = {
        "images": True,
        "train_vision": True,
        "use_lora": use_lora,
        "seed": seed,
        "learning_rate": 1e-3,
        "eps": 1e-5,  # at 1e-8 the rounding of a gradient near 0 would show as a step of its own
        "max_seq_len": 128,
        "max_prompt_len": 64,
        "micro_batch_tokens": 128,
    }
    raw = {"model": str(model), "env": {"id": "none"}, "trainer": {"args": args}}
    return parse_config(raw)[0]


def samples(model: Path, seed: int, count: int, *, shown: bool = True) -> list[Sample]:
    """Return samples of different lengths, every third of text alone."""
    renderer = load_renderer(Checkpoint.find(str(model)), EmbeddedSettings(), sees=True)
    assert renderer.vision is not None
    rng, out = random.Random(seed), []
    for number in range(count):
        parts: list[Any] = ["Just text. " * (number + 1)]
        if shown and number % 3:
            parts = ["This ", picture(number), " or ", picture(number + 9, 56, 40), "?"]
        message = Message.of("user", parts)
        prompt = renderer.prompt([message], [])
        images = renderer.vision.placed(prompt, images_of([message]), 0)
        answer = [rng.randrange(5, 300) for _ in range(5 + number)]
        sample = Sample.of(prompt, answer, images)
        out.append(replace(sample, advantage=rng.uniform(-1, 1)))
    return out


def updates(model: Path, use_lora: bool) -> dict[str, Any]:
    """Train, and return what came of it."""
    config = settings(model, use_lora)
    set_seed(config.args.seed)
    policy = Policy(config.model, config.args)
    batches = [samples(model, seed, 5) for seed in range(3)]
    batches.append(samples(model, 3, 2))  # one process sees an image, the other does not
    batches.append(samples(model, 4, 1, shown=False))  # with nothing for a second rank
    norms = [policy.update(batch).grad_norm for batch in batches]
    found = {
        "ranks": policy.ranks.count,
        "norms": norms,
        "parameters": policy.weights.trainable_state(),
        "logprobs": policy.sample_logprobs(samples(model, 5, 4)),
    }
    policy.ranks.stop()
    return found


def main() -> None:
    """Do it under a launcher; rank 0 writes to the file that is named."""
    model, use_lora, path = Path(sys.argv[1]), sys.argv[2] == "lora", Path(sys.argv[3])
    if rank := world().rank:
        follow(settings(model, use_lora, rank))
    else:
        torch.save(updates(model, use_lora), path)


if __name__ == "__main__":
    main()
