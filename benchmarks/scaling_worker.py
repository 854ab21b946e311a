"""The work of `scaling.py`, run in this process or as a script under a launcher."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from trainer_step_workers import LEARNING_RATE, VOCABULARY

if TYPE_CHECKING:
    from vf.trainer.learning.batches.batch import Sample
    from vf.trainer.learning.policy import Policy
    from vf.trainer.settings.config import Config


@dataclass(frozen=True)
class Work:
    """Rollouts of one step, all of the same shape.

    Attributes:
        groups: How many.
        group_size: Rollouts in each, which begin with one prompt.
        prompt: Tokens of the first prompt.
        turns: Of a rollout.
        observation: Tokens that the environment adds before each turn but the first.
        completion: Tokens that are sampled in a turn.
    """

    groups: int
    group_size: int
    prompt: int
    turns: int
    observation: int
    completion: int

    @property
    def longest(self) -> int:
        """Tokens of a rollout."""
        return self.prompt + self.turns * (self.observation + self.completion) - self.observation

    @property
    def trained(self) -> int:
        """Tokens that carry loss."""
        return self.groups * self.group_size * self.turns * self.completion


def samples(work: Work, *, per_turn: bool = False) -> list[Sample]:
    """Return the step's samples; the ids are the same however they are cut.

    Args:
        work: Their shape.
        per_turn: One sequence for each turn, its context before it, instead of one that grows.
    """
    from vf.traces.trace import Branch
    from vf.trainer.learning.batches.batch import Sample

    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(16, VOCABULARY) for _ in range(count)]

    def sampled(branch: Branch, tokens: list[int]) -> None:
        branch.add_sampled(tokens, [-9.0] * len(tokens), [0] * len(tokens), 0)

    found = []
    for _ in range(work.groups):
        prompt = ids(work.prompt)
        for rollout in range(work.group_size):
            advantage = 1.0 if rollout % 2 else -1.0
            whole = Branch()
            for turn in range(work.turns):
                whole.add_context(ids(work.observation) if turn else prompt, turn)
                context, completion = list(whole.token_ids), ids(work.completion)
                sampled(whole, completion)
                if per_turn:
                    alone = Branch()
                    alone.add_context(context, 0)
                    sampled(alone, completion)
                    found.append(Sample(alone, advantage))
            if not per_turn:
                found.append(Sample(whole, advantage))
    return found


def make_config(folder: str, longest: int, settings: dict[str, Any]) -> Config:
    """Return a run's config whose trainer makes one optimizer step of all weights, in float32."""
    from vf.trainer.settings.load_config import parse_config

    args = {
        "use_lora": False,
        "learning_rate": LEARNING_RATE,
        "max_seq_len": longest,
        "max_prompt_len": longest - 1,
        "loss_normalisation": "token",
        **settings,
    }
    return parse_config({"model": folder, "env": {"id": "none"}, "trainer": {"args": args}})[0]


def measure(pairs: Sequence[tuple[Policy, list[Sample]]], rounds: int) -> list[dict[str, float]]:
    """Let policies take optimizer steps in turn: one to warm up, and the median of some more.

    Args:
        pairs: Policies, each with its samples.
        rounds: Steps of each that count.
    """
    seconds: list[list[float]] = [[] for _ in pairs]
    stats = [policy.update(work) for policy, work in pairs]
    for _ in range(rounds):
        for taken, (policy, work) in zip(seconds, pairs, strict=True):
            started = time.perf_counter()
            policy.update(work)
            taken.append(time.perf_counter() - started)
    return [
        {
            "seconds": median(taken),
            "computed_tokens": found.computed_tokens,
            "grad_norm": found.grad_norm,
        }
        for taken, found in zip(seconds, stats, strict=True)
    ]


def runs(asked: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Do what was asked in one process or, under a launcher, as one of several."""
    from vf.trainer.follower import follow
    from vf.trainer.learning.policy import Policy
    from vf.trainer.processes.launch import world

    work = Work(**asked["work"])
    config = make_config(asked["folder"], work.longest, asked["settings"])
    if world().rank:
        follow(config)
        return
    policy = Policy(config.model, config.args)
    yield from measure([(policy, samples(work))], asked["rounds"])
    policy.ranks.stop()


if __name__ == "__main__":
    for result in runs(json.loads(sys.argv[1])):
        Path(sys.argv[2]).write_text(json.dumps(result))
