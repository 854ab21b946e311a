"""The auxiliary loss that keeps the experts of a mixture equally busy.

    aux = E · Σ over experts e of f_e · P_e

f_e is how often a token is sent to expert e, of the E experts, and P_e the mean of the router's
softmax there; only P has a gradient. Both are means over the tokens of a micro-batch and over all
layers with experts. With k experts per token, aux is k where all experts are used equally, and at
most E where the routers choose the same k for every token and with certainty. That is eq. 4 to 6 of
Switch Transformer (Fedus et al. 2021, arXiv:2101.03961), with the layers taken together as
transformers' ``load_balancing_loss_func`` does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vf.inference.routers import routers_of
from vf.runtime.errors import ConfigError
from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.batches.normalisation import Totals, scale
from vf.trainer.settings.config import TrainerArgs


def find_routers(model: Any) -> list[torch.nn.Module]:
    """Return the routers of a model's text part, if they can be balanced by the loss.

    That this loss is the one for them is known by transformers, which has
    ``load_balancing_loss_func`` beside the model's code.

    Args:
        model: A causal language model of transformers'; one on the device ``meta`` will do.

    Raises:
        ConfigError: If there are none, or the model's experts are balanced in another way.
    """
    routers = routers_of(model)
    name = type(model).__name__
    if not routers:
        raise ConfigError(
            f"trainer.args.router_aux_loss_coef: {name} has no routers of experts; set it to 0"
        )
    code = [sys.modules[parent.__module__] for parent in type(model).__mro__]
    if not any(hasattr(module, "load_balancing_loss_func") for module in code):
        raise ConfigError(
            f"trainer.args.router_aux_loss_coef: the routers of {name} have no auxiliary loss in "
            "transformers, as they score experts by a sigmoid, balance them by a bias, or were "
            "published without one; set it to 0"
        )
    return routers


def token_weight(totals: Totals, args: TrainerArgs) -> float:
    """Return what each token of a part of an optimizer step weighs in the loss of its routers.

    The loss of a micro-batch counts by its samples' tokens among the part's, with those that
    samples share counted for each; and a part counts as
    :func:`~vf.trainer.learning.batches.normalisation.scale` has it, by its trained tokens or its
    rollouts. So, once scaled, the weights of all tokens of a step add up to 1 however it is split.
    The loss itself depends on the split, because it is a product of means: a step's is the mean of
    those of its micro-batches.

    Args:
        totals: The totals of the part, on all ranks.
        args: ``[trainer.args]``: ``loss_normalisation``.
    """
    return 1.0 / (scale(totals, args) * totals.processed) if totals.tokens else 0.0


class RouterLoss:
    """Sees what routers choose, and says how unevenly.

    Gradient checkpointing calls routers a second time, in the backward pass; that is not seen.

    Args:
        model: A causal language model of transformers', with adapters inside its layers if any.
        args: ``[trainer.args]``: without ``router_aux_loss_coef``, nothing is seen.

    Raises:
        ConfigError: If :func:`find_routers` raises it.
    """

    def __init__(self, model: Any, args: TrainerArgs) -> None:
        self._enabled = args.router_aux_loss_coef > 0
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        for router in find_routers(model) if self._enabled else []:
            router.register_forward_hook(self._see)

    def _see(self, router: Any, given: Any, output: Any) -> None:
        # The embedded engine may call the same routers meanwhile, in its thread without gradient.
        if self._seen is not None and torch.is_grad_enabled():
            logits, _, chosen = output
            self._seen.append((logits, chosen))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See the routers of one forward pass."""
        self._seen = []
        try:
            yield
        finally:
            self._seen = None

    def __call__(self, batch: MicroBatch, weight: float) -> torch.Tensor | None:
        """Return the weighted loss of the pass that was seen, with gradient; None if not wanted.

        A packed token that samples share is computed once, and counts once; padding never does.

        Args:
            batch: The micro-batch that the model ran on.
            weight: The weight of each token: :func:`token_weight`.
        """
        if not self._enabled:
            return None
        assert self._seen is not None
        mask = batch.attention_mask if batch.tree is None else torch.ones_like(batch.tree.token_ids)
        return aux_loss(self._seen, mask.flatten()) * batch.attention_mask.sum() * weight


def aux_loss(seen: list[tuple[torch.Tensor, torch.Tensor]], mask: torch.Tensor) -> torch.Tensor:
    """Return the loss of one micro-batch, float32 ``[]``, or float64 for such logits.

    Args:
        seen: Each layer's router logits, ``[T, E]``, and its choices, int64 ``[T, k]``.
        mask: ``[T]``, 1 for the tokens that count, otherwise 0.
    """
    logits, chosen = seen[0]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    real = mask.to(dtype)
    times = real.repeat_interleave(chosen.shape[-1])
    sent = likely = torch.zeros(logits.shape[-1], dtype=dtype, device=logits.device)
    for logits, chosen in seen:
        sent = sent.scatter_add(0, chosen.flatten(), times)
        likely = likely + (logits.softmax(-1, dtype=dtype) * real[:, None]).sum(0)
    return len(sent) * (sent * likely).sum() / (len(seen) * real.sum()) ** 2
