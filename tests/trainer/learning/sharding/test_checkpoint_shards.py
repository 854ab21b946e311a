"""What a checkpoint's shards give back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vf.trainer.learning.sharding.checkpoint_shards import Stored, stage, write


def test_numbers_are_read_as_tensors_are(tmp_path: Path) -> None:
    """The step of 8-bit AdamW is a plain number."""
    write(tmp_path, stage([("optimizer/w/step", 3), ("parameters/w", torch.arange(4.0))]))
    values: dict[str, Any] = {"optimizer/w/step": None, "parameters/w": torch.zeros(4)}
    Stored(tmp_path).read(values)
    assert values["optimizer/w/step"] == 3
    assert values["parameters/w"].tolist() == [0.0, 1.0, 2.0, 3.0]
