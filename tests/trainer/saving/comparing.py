"""What two runs that were the same have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vf.trainer.learning.sharding.checkpoint_shards import OPTIMIZER, PARAMETERS, Stored
from vf.trainer.run.run_folder import RunFolder

CLOCK = ("time/", "tokens_per_s/", "groups_per_s/")


def comparable(folder: RunFolder) -> list[dict[str, float]]:
    """Return a run's metrics, line by line, except for those of the clock."""
    return [
        {
            name: value
            for name, value in line.items()
            if not any(f"/{part}" in f"/{name}" for part in CLOCK)
        }
        for line in folder.read_metrics()
    ]


def stored(checkpoint: Path) -> dict[str, Any]:
    """Return what is trained, and the optimizer's state, of a checkpoint of any processes."""
    found = Stored(checkpoint / "state")
    names = found.below(PARAMETERS)
    keys = [f"{PARAMETERS}/{name}" for name in names]
    for name in names:
        keys += [f"{OPTIMIZER}/{name}/{moment}" for moment in found.below(f"{OPTIMIZER}/{name}")]
    values: dict[str, Any] = {key: found.room(key, torch.empty(0)) for key in keys}
    found.read(values)
    return values


def sampled(folder: RunFolder, step: int) -> list[tuple[Any, ...]]:
    """Return what a step's rollouts sampled: by group and rollout, token ids and their logprobs."""
    return sorted(
        (origin.group, origin.rollout, branch.token_ids, branch.logprobs, trace.reward)
        for trace in folder.step_traces(step)
        if (origin := trace.origin) is not None
        for branch in trace.branches
    )


def differences(one: RunFolder, other: RunFolder) -> list[str]:
    """Return where two runs differ in a bit: metrics, what was sampled, and what was saved last."""
    found = []
    metrics, others = comparable(one), comparable(other)
    if len(metrics) != len(others):
        found.append(f"{len(metrics)} and {len(others)} lines of metrics")
    for mine, theirs in zip(metrics, others, strict=False):
        names = sorted(n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n))
        if names:
            found.append(f"step {mine['step']}: {', '.join(names)}")
    steps = [int(line["step"]) for line in metrics if line["step"] > 0]
    found += [f"step {s}: what was sampled" for s in steps if sampled(one, s) != sampled(other, s)]
    saved, resaved = (stored(folder.checkpoints / f"step-{steps[-1]}") for folder in (one, other))
    if saved.keys() != resaved.keys():
        return [*found, "the names of what is trained"]
    return found + [name for name in saved if not torch.equal(saved[name], resaved[name])]
