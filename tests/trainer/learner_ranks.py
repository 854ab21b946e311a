"""A loop of one's own, to be run in one process or as a script under a launcher."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import vf
from tests.trainer.learning.sharding.rank_updates import samples
from vf.trainer.learning.losses.policy_gradient import LossArrays

SETTINGS: dict[str, Any] = {
    "max_tokens": 16,
    "max_prompt_len": 192,
    "max_seq_len": 384,
    "bf16": False,
    "eps": 1e-5,  # at 1e-8 the rounding of a gradient near 0 would show as a step of its own
}


def pull(arrays: LossArrays) -> torch.Tensor:
    """A loss that other processes must import."""
    return arrays.log_ratio.square() - arrays.log_ratio.exp() * arrays.advantages


async def loop(folder: Path) -> dict[str, Any]:
    """Take a few steps, and return what came of them."""
    said = []
    with vf.Learner("tiny", **SETTINGS) as learner:
        ranks, sampler = learner.policy.ranks.count, learner.sampler()
        for step in range(3):
            said.append(learner.forward_backward(samples(step, 7)))
            said.append(learner.forward_backward(samples(step + 3, 3), loss_fn=pull))
            said.append(learner.optim_step(learning_rate=1e-3))
            learner.publish()
        learner.forward_backward([])
        learner.optim_step(learning_rate=1e-3)
        learner.save(folder / "checkpoint")
        env = vf.make("calculator")
        traces = await vf.rollouts(env, sampler, list(env.tasks("eval"))[:2], seed=1)
        learner.forward_backward(vf.samples(traces))
        learner.optim_step(learning_rate=1e-3)
        steps = learner.load(folder / "checkpoint")
        said.append(learner.forward_backward(samples(9, 7)))
        said.append(learner.optim_step(learning_rate=1e-3))
        forward = learner.forward(samples(10, 5))
        state = learner.policy.weights.trainable_state()
    metrics = [asdict(each) for each in said]
    return {
        "ranks": ranks,
        "steps": steps,
        "metrics": metrics,
        "forward": forward,
        "parameters": state,
    }


def main() -> None:
    """Do it under a launcher: only rank 0 comes to write the file that is named."""
    path = Path(sys.argv[1])
    torch.save(asyncio.run(loop(path.parent)), path)


if __name__ == "__main__":
    main()
