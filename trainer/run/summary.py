"""How a run ended, for whoever started it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vf.trainer.run.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended.

    Attributes:
        steps: Training steps done.
        eval_before: Mean held-out reward before the first step, or None without evaluation.
        eval_after: Mean held-out reward after the last step.
        seconds: Wall time, earlier parts of a resumed run included.
        checkpoint: The last checkpoint, or the folder for them if there is none.
    """

    steps: int
    eval_before: float | None
    eval_after: float | None
    seconds: float
    checkpoint: Path

    @classmethod
    def of(cls, lines: Sequence[Metrics], steps: int, *, seconds: float, checkpoint: Path) -> Self:
        """Sum up a run from the lines of its ``metrics.jsonl``."""
        held_out = {int(line["step"]): line.get("eval/reward/mean") for line in lines}
        return cls(steps, held_out.get(0), held_out.get(steps), seconds, checkpoint)
