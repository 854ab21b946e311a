"""`learning_rate = "auto"`, advice where a rate is far from it, and its course over a run.

    rate = 1e-6 · (4096 / hidden size) · √(rollouts per optimizer step / 64)        all weights
         = 10 · the same · (32 / lora_alpha)                                        LoRA

- 1e-6 is the rate of full RL fine-tunes of models of some 7 B parameters (hidden size 4096):
  DeepSeekMath (arXiv:2402.03300, section 4.2), DAPO (arXiv:2503.14476, section 4.1).
- The optimal rate of Adam falls as 1 / width (μP, arXiv:2203.03466, table 3).
- LoRA wants ten times the rate of a full fine-tune, whatever its rank, with α = 32 over the rank
  ("LoRA Without Regret", https://thinkingmachines.ai/blog/lora/). The adapter's effect is
  proportional to α, and Adam's steps do not see it.
- Adam's rate goes with the square root of the batch (arXiv:2205.10287).

A rule of thumb to begin with: it knows nothing of the task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.shared import Schedule

FULL_RATE = 1e-6
HIDDEN = 4096
ROLLOUTS = 64
LORA_FACTOR = 10.0
LORA_ALPHA = 32.0
FAR = 10.0  # times the rule's rate, or below a tenth of it: worth a word


def auto_learning_rate(args: TrainerArgs, hidden_size: int) -> float:
    """Return the rate that the rule gives.

    Args:
        args: ``[trainer.args]``.
        hidden_size: Width of the model.
    """
    rollouts = args.batch_size / args.num_substeps
    rate = FULL_RATE * HIDDEN / hidden_size * math.sqrt(rollouts / ROLLOUTS)
    return rate * LORA_FACTOR * LORA_ALPHA / args.lora_alpha if args.use_lora else rate


def peak_learning_rate(args: TrainerArgs, hidden_size: int) -> float:
    """Return the rate that is set, or the rule's."""
    if args.learning_rate == "auto":
        return auto_learning_rate(args, hidden_size)
    return args.learning_rate


@dataclass(frozen=True, slots=True)
class Course:
    """The learning rate over a run, as a function of the position alone.

    After a linear warm-up from 0 it is constant, falls linearly to 0, or falls to 0 as half a
    cosine wave (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, without restarts).

    Attributes:
        peak: The highest rate.
        kind: What follows the warm-up.
        warmup: Length of the warm-up, in optimizer steps.
        length: Optimizer steps of the run, warm-up included.
    """

    peak: float
    kind: Schedule
    warmup: int
    length: int

    @classmethod
    def of(cls, args: TrainerArgs, hidden_size: int) -> Course:
        """Return the course that the settings ask for.

        Args:
            args: ``[trainer.args]``.
            hidden_size: Width of the model.
        """
        updates = args.updates_per_step
        peak = peak_learning_rate(args, hidden_size)
        kind, warmup, length = args.lr_scheduler_type, args.warmup_steps, args.max_steps
        return cls(peak, kind, warmup * updates, length * updates)

    def rate(self, position: int) -> float:
        """Return the rate of the optimizer step before which there are ``position`` others."""
        if position < self.warmup:
            return self.peak * position / self.warmup
        done = (position - self.warmup) / max(1, self.length - self.warmup)
        match self.kind:
            case "constant":
                return self.peak
            case "linear":
                return self.peak * max(0.0, 1.0 - done)
            case "cosine":
                return self.peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def advice(args: TrainerArgs, hidden_size: int) -> str | None:
    """Return what to think of where a rate does not fit model and batch, else None."""
    if args.learning_rate == "auto":
        return None
    rule = auto_learning_rate(args, hidden_size)
    times = args.learning_rate / rule
    if 1.0 / FAR <= times <= FAR:
        return None
    rollouts = args.batch_size // args.num_substeps
    if times > 1.0:
        far = f"{times:.0f} times what"
        do = "if reward or entropy collapses, lower it, or take more rollouts into a step"
    else:
        far = f"{1.0 / times:.0f} times below what"
        do = "if reward does not move, raise it, or take fewer rollouts into a step"
    return (
        f"learning_rate = {args.learning_rate:g} is {far} learning_rate = 'auto' gives for this "
        f"model with {rollouts} rollouts in an optimizer step ({rule:.1e}); {do}"
    )
