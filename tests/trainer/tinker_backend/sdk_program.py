"""Compares the gradients of a step on a server with those of this machine, for every loss.

    python sdk_program.py URL FOLDER SCRATCH

It runs with the interpreter of the SDK's environment. FOLDER is the server's. It prints one JSON
object: by the name of each case, the largest difference over the largest gradient; and as
"learner" what a loop of one's own found between sampler and server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import vf
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.normalisation import scale
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.load_config import parse_config
from vf.trainer.tinker_backend.policy import TinkerPolicy
from vf.trainer.tinker_backend.record import saved_path
from vf.trainer.tinker_backend.service import TinkerService

# AdamW's first step with these is g / (|g| + 1), from which g is known.
ADAM = {"betas": [0.0, 0.0], "eps": 1.0, "learning_rate": 1.0, "max_grad_norm": 1e9}
CASES: dict[str, dict[str, Any]] = {
    "importance_sampling": {},
    "by sequence": {"loss_fn": "ppo", "loss_normalisation": "sequence", "clip_high": 0.3},
    "fixed": {"loss_fn": "cispo", "loss_normalisation": "fixed"},
    "truncated": {"importance_sampling_mode": "token_truncate"},
    "truncated ppo": {"loss_fn": "ppo", "importance_sampling_mode": "token_truncate"},
    "masked": {"importance_sampling_mode": "token_mask"},
    "of sequences": {"importance_sampling_mode": "sequence_truncate"},
    "dual clip": {"loss_fn": "ppo", "dual_clip": 1.1},
    "dro": {"loss_fn": "dro"},
    "gspo": {"loss_fn": "gspo", "sequence_clip_low": 0.01, "sequence_clip_high": 0.01},
    "dppo": {"loss_fn": "dppo"},
}


def samples(policy: TinkerPolicy, rng: random.Random) -> list[Sample]:
    """Return branches of two turns, sampled by something like the policy; two of each rollout."""
    made = []
    for number in range(6):
        branch = Branch()
        for turn in range(2):
            branch.add_context([rng.randrange(512) for _ in range(rng.randrange(2, 9))], turn)
            ids = [rng.randrange(512) for _ in range(rng.randrange(1, 9))]
            branch.add_sampled(ids, [0.0] * len(ids), [0] * len(ids), turn)
        by_turn = (rng.uniform(-1, 1), rng.uniform(-1, 1)) if number % 2 else ()
        made.append(Sample(branch, rng.uniform(-1, 1), by_turn, str(number // 2)))
    for sample, logprobs in zip(made, policy.sample_logprobs(made), strict=True):
        mask = sample.branch.loss_mask
        noisy = [
            min(0.0, x + rng.gauss(0, 0.4)) * m
            for x, m in zip(logprobs.tolist(), mask, strict=True)
        ]
        sample.branch.logprobs[:] = noisy
    return made


def saved(policy: TinkerPolicy, served: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """Return the adapter as the server saves it."""
    policy.begin_save("look")(scratch)
    run, kind, name = (saved_path(scratch) or "").split("/")[2:]
    return load_file(served / run / kind / name / "adapter_model.safetensors")


def difference(url: str, served: Path, settings: dict[str, Any], *, later: bool) -> float:
    """Return the largest difference over the largest gradient.

    Args:
        url: The server's.
        served: Its folder.
        settings: ``[trainer.args]``.
        later: Whether it is a batch's second optimizer step.
    """
    tinker = {"backend": "tinker", "tinker": {"base_url": url}, "args": {**ADAM, **settings}}
    config, _ = parse_config({"model": "tiny", "env": {"id": "none"}, "trainer": tinker})
    service = TinkerService(config)
    theirs = TinkerPolicy(service, config.args, 64)
    rng = random.Random(1)
    data = samples(theirs, rng)
    theirs.accumulate(data)
    theirs.finish()  # so that B is not 0
    data = samples(theirs, rng)
    scratch = Path(sys.argv[3])
    before = saved(theirs, served, scratch)
    ours = Policy("tiny", config.args)
    parameters = {
        name.replace(".default", ""): parameter
        for name, parameter in ours.model.named_parameters()
        if parameter.requires_grad
    }
    assert parameters.keys() == before.keys()

    def copy() -> None:
        for name, parameter in parameters.items():
            parameter.data.copy_(before[name])

    copy()
    if later:
        data = theirs.with_old_logprobs(data)
        mine = ours.with_old_logprobs(data)
        gaps = zip(data, mine, strict=True)
        assert (
            max(
                abs(a - b)
                for x, y in gaps
                for a, b in zip(x.old_logprobs, y.old_logprobs, strict=True)
            )
            < 1e-4
        )
        theirs.accumulate(data)
        theirs.finish()
        before = saved(theirs, served, scratch)
        copy()
    theirs.accumulate(data)
    stats = theirs.finish()
    after = saved(theirs, served, scratch)
    ours.accumulate(data)
    factor = scale(ours.accumulated, config.args)
    gradients = {name: factor * each.grad for name, each in parameters.items()}
    expected = ours.finish()
    assert abs(stats.loss - expected.loss) < 1e-4 * max(1.0, abs(expected.loss)), (stats, expected)
    assert abs(stats.grad_norm / expected.grad_norm - 1) < 1e-4, (stats, expected)
    assert (stats.tokens, stats.kl_v1) == (expected.tokens, stats.kl_v1)
    service.stop()
    moved = {name: before[name] - after[name] for name in before}
    found = {name: each / (1 - each.abs()) for name, each in moved.items()}
    most = max(float(each.abs().max()) for each in gradients.values())
    return max(float((found[name] - gradients[name]).abs().max()) for name in found) / most


def own_loop(url: str, scratch: Path) -> float:
    """Return how far sampler and server are apart after a step of :class:`vf.Learner`."""
    settings: dict[str, Any] = {"backend": "tinker", "tinker": {"base_url": url}}
    settings |= {"max_seq_len": 256, "max_prompt_len": 192, "max_tokens": 8}
    environment = vf.make("calculator")
    tasks = list(itertools.islice(environment.tasks("train"), 2))
    with vf.Learner("tiny", **settings) as learner:
        traces = asyncio.run(
            vf.rollouts(environment, learner.sampler(), tasks, rollouts_per_example=4)
        )
        stats = learner.forward_backward(vf.samples(traces, lambda rewards: range(len(rewards))))
        assert stats.tokens > 0
        assert abs(stats.kl_v1) < 1e-3, stats
        learner.save(scratch / "checkpoint")
        assert learner.optim_step(1e-3).grad_norm > 0
        gap = learner.publish()
        learner.load(scratch / "checkpoint")
        return gap


if __name__ == "__main__":
    url, folder = sys.argv[1], Path(sys.argv[2])
    outcomes = {name: difference(url, folder, each, later=False) for name, each in CASES.items()}
    outcomes["second step"] = difference(url, folder, CASES["truncated ppo"], later=True)
    outcomes["learner"] = own_loop(url, Path(sys.argv[3]))
    print(json.dumps(outcomes))
