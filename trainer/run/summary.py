"""How a run ended, for who started it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended.

    Attributes:
        steps: Training steps done.
        eval_before: Mean held-out reward before the first step, or None without evaluation.
        eval_after: Mean held-out reward after the last step.
        seconds: Wall time, earlier parts of a resumed run included.
        checkpoint: The last checkpoint.
    """

    steps: int
    eval_before: float | None
    eval_after: float | None
    seconds: float
    checkpoint: Path
