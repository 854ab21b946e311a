"""`learning_rate = "auto"`, and advice where a rate is far from it.

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

from vf.trainer.settings.config import TrainerArgs

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
