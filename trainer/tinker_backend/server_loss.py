"""A step's samples as data of the Tinker API, with a loss of the API whose gradient is ours.

The API's losses are sums over tokens. What a token weighs in the step, and the weight v that
corrects for the sampler, are factors of its loss, and so of its advantage. With

    importance_sampling    −r·A          r = p / q
    ppo                    −min(r·A, clip(r, low, high)·A)
    cispo                  −clip(r, low, high)·A·log p, without a gradient through the clip
    cross_entropy          −w·log p

the first three are ours as they are. With truncated importance weights, before the batch's first
optimizer step, r = 1 and v = min(p / q, C): the gradient of every loss that is −A at r = 1 is that
of cispo with the ceiling C. Any other loss is computed here, from the log-probabilities of a
forward pass; cross_entropy with w = −∂loss/∂log p has its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vf.trainer.learning.batches.batch import MicroBatch, Sample, collate
from vf.trainer.learning.losses.custom_loss import Loss
from vf.trainer.learning.losses.importance_sampling import Correction
from vf.trainer.settings.config import TrainerArgs

CROSS_ENTROPY = "cross_entropy"


@dataclass(frozen=True, slots=True)
class ServerLoss:
    """A loss of the API: its name and its ``loss_fn_config``."""

    name: str
    config: dict[str, float] | None = None


def server_loss(args: TrainerArgs, loss: Loss, *, first: bool) -> ServerLoss | None:
    """Return the loss of the API that has the gradient of a loss here.

    Args:
        args: ``[trainer.args]``.
        loss: Another than that of the settings.
        first: Whether the batch's first optimizer step is still to come.

    Returns:
        None if it has none, and its gradient is to be computed from a forward pass.
    """
    name = args.loss_fn if loss is None else loss
    correction = Correction.of(args)
    if correction is not None:
        truncates = correction.low is None and not correction.of_sequence
        if first and truncates and name in ("importance_sampling", "ppo"):
            return ServerLoss("cispo", _clips(0.0, correction.high))
        return None
    if name == "importance_sampling":
        return ServerLoss(name)
    if name == "cispo" or (name == "ppo" and args.dual_clip is None):
        return ServerLoss(name, _clips(1.0 - args.clip_low, 1.0 + args.clip_high))
    return None


def _clips(low: float, high: float) -> dict[str, float]:
    return {"clip_low_threshold": low, "clip_high_threshold": high}


@dataclass(frozen=True, slots=True)
class Row:
    """A sample of T tokens on its way to the server.

    Attributes:
        batch: The sample alone, ``[1, T]``.
        datum: What the server has of it: T − 1 input tokens, each with the next as its target.
    """

    batch: MicroBatch
    datum: Any

    @classmethod
    def of_policy_gradient(cls, sample: Sample, factor: float, sdk: Any) -> Row:
        """Return a sample for a loss of a ratio and an advantage.

        Args:
            sample: The sample, with its weight.
            factor: The factor of the summed loss.
            sdk: The package ``tinker``.
        """
        batch = collate([sample])
        mask = batch.loss_mask
        advantages = batch.advantages * (batch.weights * factor) * mask
        inputs = {"advantages": advantages[0], "logprobs": (batch.sampler_logprobs * mask)[0]}
        return cls(batch, _datum(sample, inputs, sdk))

    @classmethod
    def of_cross_entropy(cls, sample: Sample, weights: torch.Tensor, sdk: Any) -> Row:
        """Return a sample for cross-entropy.

        Args:
            sample: The sample.
            weights: The weights of its tokens, float32 ``[T]``.
            sdk: The package ``tinker``.
        """
        return cls(collate([sample]), _datum(sample, {"weights": weights}, sdk))


def _datum(sample: Sample, inputs: dict[str, torch.Tensor], sdk: Any) -> Any:
    ids = sample.branch.token_ids
    tensors = {name: values[1:].float().contiguous() for name, values in inputs.items()}
    return sdk.Datum(
        model_input=sdk.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": torch.tensor(ids[1:]), **tensors},
    )
