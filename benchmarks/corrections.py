"""What a correction saves when the sampler is wrong: `python benchmarks/corrections.py`.

The tiny model learns the quickstart's task, in the loop of docs/own-loop.md. Its sampler is made
wrong on purpose: while it samples, each row of its frozen weights is rounded to a few levels, so
tokens come from another policy than the one that learns. Then the same with each way to correct
that, and two references: a sampler that is right, and a learner that takes the tokens for its own.
Held-out reward is measured with weights that are not rounded.

- no mismatch: the sampler has the learner's weights.
- none: the sampler's log-probabilities are replaced by the learner's, so every ratio is 1.
- off: the loss takes its ratio to the sampler, without a bound.
- token_truncate, token_mask, sequence_truncate, sequence_mask: `importance_sampling_mode`.

Prints a table of held-out rewards by step, with means and ranges over the seeds, and one line of
JSON: `ratio` is the reward that the best correction gains over none, in what no mismatch gains.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from statistics import fmean
from typing import Any

import torch
from harness import parse, print_result, say

import vf

MODES = ("off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
WAYS = ("no mismatch", "none", *MODES)
TASKS, GROUP = 8, 8  # of a step
SETTINGS: dict[str, Any] = {
    "temperature": 0.9,
    "lora_rank": 16,
    "lora_alpha": 32,
    "max_tokens": 64,
    "max_prompt_len": 256,
    "max_seq_len": 512,
}
ENGINE = {"engine": "embedded", "args": {"max_requests": TASKS * GROUP}}


@contextmanager
def rounded(learner: vf.Learner, levels: int) -> Iterator[None]:
    """Round each row of the frozen matrices until the block ends; adapters are left alone.

    Args:
        learner: Whose engine samples meanwhile.
        levels: Values that a row's weights have, at equal distances: an odd number, one of them 0.
    """
    weights = learner.policy.model.parameters()
    frozen = [each for each in weights if each.dim() == 2 and not each.requires_grad]
    kept = [each.detach().clone() for each in frozen]

    def use(values: list[torch.Tensor]) -> None:
        with learner.training(), torch.no_grad():  # the engine drops what it made of the weights
            for each, value in zip(frozen, values, strict=True):
                each.copy_(value)
        learner.publish()

    steps = [each.abs().amax(1, keepdim=True).clamp(min=1e-12) * 2 / (levels - 1) for each in kept]
    use([(each / step).round() * step for each, step in zip(kept, steps, strict=True)])
    try:
        yield
    finally:
        use(kept)


async def learn(way: str, seed: int, args: argparse.Namespace) -> dict[int, float]:
    """Train, and return the held-out reward by the step after which it was measured."""
    env = vf.make("calculator", max_operand=20)
    train, held_out = list(env.tasks("train")), list(env.tasks("eval"))[: args.tasks]
    draw = random.Random(seed)
    mode = {"importance_sampling_mode": way if way in MODES else "off"}
    found = {}
    with vf.Learner("tiny", inference=ENGINE, seed=seed, **SETTINGS, **mode) as learner:
        sampler = learner.sampler()
        for step in range(args.steps + 1):
            if step % args.eval_steps == 0:
                found[step] = (await vf.evaluate(env, sampler, tasks=held_out)).mean_reward
            if step == args.steps:
                break
            with nullcontext() if way == "no mismatch" else rounded(learner, args.levels):
                tasks = draw.sample(train, TASKS)
                seeds = {"rollouts_per_example": GROUP, "seed": seed * args.steps + step}
                traces = await vf.rollouts(env, sampler, tasks, **seeds)
            samples = vf.samples(traces)
            if way == "none":
                for sample, logprobs in zip(samples, learner.forward(samples), strict=True):
                    sample.branch.logprobs[:] = logprobs.tolist()
            learner.forward_backward(samples)
            learner.optim_step(learning_rate=args.learning_rate * (1 - step / args.steps))
            learner.publish()
    return found


def main() -> None:
    """Train in every way with every seed, and print what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (default: 20)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each way (default: 3)")
    parser.add_argument("--levels", type=int, default=5, help="values of a weight (default: 5)")
    parser.add_argument("--tasks", type=int, default=200, help="held out (default: 200)")
    parser.add_argument("--eval-steps", type=int, default=5, help="between measures (default: 5)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at first (0.001)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="by default all")
    few = ["no mismatch", "none", "token_truncate"]
    args = parse(parser, steps=1, seeds=1, tasks=8, eval_steps=1, ways=few)
    if args.levels < 3 or args.levels % 2 == 0:
        parser.error(f"--levels {args.levels}: it must be an odd number of at least 3")
    curves: dict[str, list[dict[int, float]]] = {way: [] for way in args.ways}
    began = time.monotonic()
    for number, (seed, way) in enumerate(product(range(args.seeds), args.ways), 1):
        say(f"{way}, seed {seed}: {args.steps} steps")
        curves[way].append(asyncio.run(learn(way, seed, args)))
        took, of = time.monotonic() - began, args.seeds * len(args.ways)
        print(f"{number}/{of} {way}, seed {seed}: {curves[way][-1]} ({took:.0f} s)", flush=True)
    steps = list(curves[args.ways[0]][0])
    print(f"\n| | {' | '.join(f'step {step}' for step in steps)} | seeds, last |")
    print("|---" * (len(steps) + 2) + "|")
    for way, found in curves.items():
        means = (f"{fmean(each[step] for each in found):.3f}" for step in steps)
        last = [each[steps[-1]] for each in found]
        print(f"| {way} | {' | '.join(means)} | {min(last):.3f} to {max(last):.3f} |")
    last_of = {way: fmean(each[steps[-1]] for each in found) for way, found in curves.items()}
    ratio = None
    if {"no mismatch", "none"} < set(last_of):
        best = max(last_of[way] for way in MODES if way in last_of)
        if to_gain := last_of["no mismatch"] - last_of["none"]:
            ratio = (best - last_of["none"]) / to_gain
    print_result(args, "corrections", ratio=ratio, target=0.9, options=vars(args), held_out=last_of)


if __name__ == "__main__":
    main()
