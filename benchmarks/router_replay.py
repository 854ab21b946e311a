"""What becomes of a mixture's importance ratios with the engine's experts, and without.

    python benchmarks/router_replay.py

A random mixture of 3 layers with 8 experts each, of which a token gets 2, samples 64 answers of 24
tokens in the embedded engine, and the learner computes their log-probabilities with the same
weights: once with its routers' own choice (`router_replay = "compare"`), once with the engine's
(`"replay"`). In float32, in bfloat16, and in bfloat16 with a learner in float32, as where an engine
is quantised. Prints how many choices differ, and how far the ratios are from 1.

The last line is JSON: `ratio` is by how much replay narrows the widest ratio in bfloat16.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Literal

import torch
from harness import parse, print_result
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import MicroBatch, Sample
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.model.self_test import choose_forward

PROMPT, LONGEST = 100, 256
PAIRS = ((torch.float32, torch.float32), (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32))


def mixture(dtype: torch.dtype) -> Qwen3MoeForCausalLM:
    """Return the model; its weights are those of float32, rounded."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=64,
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    model = Qwen3MoeForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(3)  # distributions that are far from even
    return model.to(torch.bfloat16).to(dtype)


def answers(model: Qwen3MoeForCausalLM, args: argparse.Namespace) -> list[Sample]:
    """Return what the engine sampled, with its experts."""
    count = args.requests
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, 512, (count, PROMPT), generator=generator).tolist()
    engine = EmbeddedEngine(model, max_seq_len=LONGEST, max_requests=count, record_experts=True)

    async def all_at_once() -> list[Any]:
        asked = (
            engine.generate(prompt, Sampling(args.tokens, seed=seed, experts_from=0), [])
            for seed, prompt in enumerate(prompts)
        )
        return await asyncio.gather(*asked)

    engine.start()
    try:
        found = asyncio.run(all_at_once())
    finally:
        engine.stop()
    samples = []
    for prompt, answer in zip(prompts, found, strict=True):
        branch = Branch()
        branch.add_context(prompt, 0)
        branch.add_sampled(answer.token_ids, answer.logprobs, answer.versions, 0)
        branch.experts += answer.experts
        samples.append(Sample(branch, 0.0))
    return samples


def learn(
    model: Qwen3MoeForCausalLM, batch: MicroBatch, how: Literal["compare", "replay"]
) -> tuple[float, torch.Tensor]:
    """Return the share of choices that differ, and log p − log q of the sampled tokens, ``[N]``."""
    forward = choose_forward(model, LONGEST)
    forward.follow(how)
    with torch.no_grad(), forward.active():
        logprobs, *_ = forward(batch, 1.0)
    compared, different = forward.compared
    return different / compared, logprobs - batch.sampler_logprobs[batch.loss_mask]


def main() -> None:
    """Measure, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=64, help="default: 64")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer (default: 24)")
    args = parse(parser, requests=4, tokens=8)
    print("| engine | learner | routers | choices that differ | ratios | mean abs. gap, nats |")
    print("|---|---|---|---|---|---|")
    widest = {}
    for of_engine, of_learner in PAIRS:
        names = [str(each).removeprefix("torch.") for each in (of_engine, of_learner)]
        [batch] = pack(answers(mixture(of_engine), args), 10**6)
        for how in ("compare", "replay"):
            share, gaps = learn(mixture(of_learner), batch, how)
            low, high = gaps.min().exp().item(), gaps.max().exp().item()
            widest[(*names, how)] = gaps.abs().max().item()
            who = "own choice" if how == "compare" else "the engine's"
            print(
                f"| {names[0]} | {names[1]} | {who} | {share:.2%} | {low:.6f} to {high:.6f} "
                f"| {gaps.abs().mean().item():.2g} |"
            )
    rounded = ("bfloat16", "bfloat16")
    ratio = widest[(*rounded, "compare")] / widest[(*rounded, "replay")]
    exact = widest[("float32", "float32", "replay")]
    print_result(args, "router_replay", ratio=ratio, target=1.0, exact=exact)


if __name__ == "__main__":
    main()
