"""Random groups of multi-turn rollouts with forks, as samples."""

from __future__ import annotations

import random

from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample

VOCABULARY = 512


def forked_samples(seed: int, groups: int = 2, rollouts: int = 3) -> list[Sample]:
    """Return the branches of groups of rollouts.

    A group begins with one prompt. A rollout alternates sampled tokens and context; some fork, and
    then both branches hold what was sampled before, with loss.
    """
    rng = random.Random(seed)
    system = _ids(rng, rng.choice([0, 3, 30]))  # all groups begin with it
    out = []
    for _ in range(groups):
        prompt = system + _ids(rng, rng.randint(1, 30))
        for _ in range(rollouts):
            trunk = Branch()
            trunk.add_context(prompt, 0)
            branches = [trunk]
            for turn in range(rng.randint(1, 3)):
                if rng.random() < 0.4:
                    branches.append(_cut(branches[-1], rng.randint(1, len(branches[-1]))))
                _add_turn(rng, branches[-1], turn)
            advantage = rng.uniform(-1.0, 1.0)
            out += [Sample(branch, advantage) for branch in branches if any(branch.loss_mask[1:])]
    rng.shuffle(out)
    return out


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def _add_turn(rng: random.Random, branch: Branch, turn: int) -> None:
    count = rng.randint(1, 7)
    logprobs = [rng.uniform(-7.0, -5.0) for _ in range(count)]
    branch.add_sampled(_ids(rng, count), logprobs, [0] * count, turn)
    branch.add_context(_ids(rng, rng.randint(0, 5)), turn)


def _cut(branch: Branch, length: int) -> Branch:
    return Branch(
        branch.token_ids[:length],
        branch.loss_mask[:length],
        branch.logprobs[:length],
        branch.turn_index[:length],
        branch.weight_version[:length],
    )
