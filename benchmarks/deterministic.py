"""What ``deterministic = true`` costs: rollouts and updates with it and without, in rounds.

    python benchmarks/deterministic.py --rounds 5

The shipped model with an adapter and 64 requests at once, in 8 groups, on one thread. An update
is a gradient of all that was sampled. Times are the processor's, so that other work beside it does
not count. It also counts tokens whose log-probabilities differ.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median

import torch
from harness import parse, print_result, say

from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

REQUESTS, GROUP, LONGEST = 64, 8, 512
TARGETS = {"rollouts": 1.3, "trainer": 1.15}


def prompts() -> list[list[int]]:
    """Return each request's prompt: 146 tokens of all, as in the quickstart, then its group's."""
    generator = torch.Generator().manual_seed(0)
    begin, *own = (torch.randint(512, (n,), generator=generator).tolist() for n in (146, *[22] * 8))
    return [begin + own[i // GROUP][: 1 + 3 * (i // GROUP)] for i in range(REQUESTS)]


class Side:
    """A policy and its engine.

    Args:
        deterministic: The setting.
        tokens: Of an answer.
    """

    def __init__(self, *, deterministic: bool, tokens: int) -> None:
        self.longest_answer = tokens
        args = TrainerArgs(
            deterministic=deterministic,
            bf16=False,
            max_prompt_len=256,
            max_seq_len=LONGEST,
            temperature=0.9,
        )
        self.policy = Policy("tiny", args)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in self.policy.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02, generator=generator)
        self.engine = EmbeddedEngine(
            self.policy.weights.module,
            max_seq_len=LONGEST,
            max_requests=REQUESTS,
            deterministic=deterministic,
        )
        self.engine.start()
        self.seconds: dict[str, list[float]] = {"rollouts": [], "trainer": []}
        self.differing = self.tokens = 0

    def round(self, number: int) -> None:
        """Sample, learn, and compare."""
        self.engine.publish(number)
        begin = time.process_time()
        answers = asyncio.run(self._answers())
        self.seconds["rollouts"].append(time.process_time() - begin)
        samples = []
        for index, (prompt, answer) in enumerate(zip(prompts(), answers, strict=True)):
            branch, count = Branch(), len(answer.token_ids)
            branch.add_context(prompt, 0)
            branch.add_sampled(answer.token_ids, answer.logprobs, [0] * count, 0)
            samples.append(Sample(branch, 1.0 - index % 3))
        with self.engine.paused():
            begin = time.process_time()
            self.policy.accumulate(samples)
            self.seconds["trainer"].append(time.process_time() - begin)
            self.policy.drop()
            found = self.policy.sample_logprobs(samples)
        for sample, logprobs in zip(samples, found, strict=True):
            pairs = zip(sample.branch.logprobs, logprobs.tolist(), strict=True)
            self.differing += sum(mine != theirs for mine, theirs in pairs)
            self.tokens += sum(sample.branch.loss_mask)

    async def _answers(self) -> list[Completion]:
        return await asyncio.gather(
            *(
                self.engine.generate(
                    prompt, Sampling(self.longest_answer, temperature=0.9, seed=seed), []
                )
                for seed, prompt in enumerate(prompts())
            )
        )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    args = parse(parser, rounds=1, tokens=8)
    torch.set_num_threads(1)
    usual, exact = sides = [Side(deterministic=each, tokens=args.tokens) for each in (False, True)]
    for number in range(args.rounds + 1):
        say(f"round {number} of {args.rounds}" if number else "a round to warm up")
        for side in sides:
            side.round(number)
    ratios = {}
    for part, target in TARGETS.items():
        before, after = (median(side.seconds[part][1:]) for side in sides)  # the first warms up
        ratios[part] = after / before
        print(f"{part}: {before:.3f} s, deterministic {after:.3f} s: {after / before:.2f} times")
        print(f"  at most {target} is wanted")
    for name, side in (("usual", usual), ("deterministic", exact)):
        print(f"{name}: {side.differing:,} of {side.tokens:,} log-probabilities differ")
        side.engine.stop()
    worst = max(ratios[part] / target for part, target in TARGETS.items())
    print_result(
        args, "deterministic", ratio=1 / worst, target=1.0, differing=exact.differing, **ratios
    )


if __name__ == "__main__":
    main()
