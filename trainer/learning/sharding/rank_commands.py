"""What rank 0 sends to the other trainer processes, which follow it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.batches.normalisation import Totals
from vf.trainer.learning.losses.custom_loss import Loss


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Add gradients to those of the optimizer step under way.

    Attributes:
        batches: The receiving rank's share.
        totals: The totals of the shares of all ranks.
        seed: The seed of the follower's dropout. Rank 0 uses its own random state, which it saves.
        rounds: Passes that every rank must make, where the model is sharded; else 0.
        loss: By its name, or as a function; None for that of the settings.
    """

    batches: list[MicroBatch]
    totals: Totals
    seed: int
    rounds: int = 0
    loss: Loss = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Take the optimizer step together.

    Attributes:
        learning_rate: The learning rate of this step.
    """

    learning_rate: float


@dataclass(frozen=True, slots=True)
class Together:
    """Run a method of the policy, for the parts of the model that this rank holds.

    Attributes:
        path: Which method: ``logprobs``, or ``weights.state``.
        args: The method's arguments.
    """

    path: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Write this rank's part of a checkpoint, while training continues.

    Attributes:
        path: The folder of the tensors.
    """

    path: Path


@dataclass(frozen=True, slots=True)
class Load:
    """Load a checkpoint.

    Attributes:
        path: The checkpoint's folder.
    """

    path: Path


@dataclass(frozen=True, slots=True)
class Stop:
    """End."""


Command = Accumulate | Finish | Together | Save | Load | Stop
