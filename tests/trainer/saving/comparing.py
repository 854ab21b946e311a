"""What two runs that were the same have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vf.trainer.learning.shards import OPTIMIZER, PARAMETERS, Stored
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
