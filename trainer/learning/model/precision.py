"""The precision of a model: bfloat16 or float32, and where more is needed.

In bfloat16, products round their results to 8 significant bits. That is too few for logits, of
which differences count, and for sums over many tokens: both are float32 here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding

from vf.trainer.settings.config import TrainerArgs

LOW = (torch.bfloat16, torch.float16)


def compute_dtype(args: TrainerArgs) -> torch.dtype:
    """Return in what the model computes, and in what its frozen weights are held."""
    return torch.bfloat16 if args.bf16 is True else torch.float32


def allow_tf32(device: torch.device, args: TrainerArgs, *models: Any) -> None:
    """Let float32 products on a CUDA device round their factors to TF32's 11 significant bits.

    Angles of rotary positions, which some models compute as a product, stay exact: 11 bits of a
    position in the thousands are no position. With ``bf16`` all large products are in bfloat16, and
    what is left of float32 stays exact.

    Args:
        device: The device that the models compute on.
        args: ``[trainer.args]``.
        *models: All of them.
    """
    if device.type != "cuda" or args.bf16 is True:
        return
    _fast()
    for module in (module for model in models for module in model.modules()):
        if hasattr(module, "inv_freq"):
            module.register_forward_pre_hook(_exact)
            module.register_forward_hook(_fast, always_call=True)


def _exact(*_: object) -> None:
    torch.set_float32_matmul_precision("highest")


def _fast(*_: object) -> None:
    torch.set_float32_matmul_precision("high")


def exact_ends(model: Any) -> None:
    """Have a model in low precision make float32 logits, and sum its embedding's gradient in it.

    Whoever runs the module gets these logits: the trainer, and an engine that samples from it.

    Args:
        model: A causal language model of transformers', before an adapter is added.
    """
    head, first = model.get_output_embeddings(), model.get_input_embeddings()
    if type(head) is torch.nn.Linear:
        head.__class__ = ExactHead  # the same weight, which may be the embedding's too
    if type(first) is torch.nn.Embedding and first.max_norm is None:
        first.__class__ = ExactEmbedding


class ExactHead(torch.nn.Linear):
    """A linear layer whose output is float32."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 ``[..., V]`` from ``[..., H]``."""
        apply: Any = _Logits.apply
        flat: torch.Tensor = apply(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        logits = flat.view(*hidden.shape[:-1], -1)
        return logits if self.bias is None else logits + self.bias


class ExactEmbedding(torch.nn.Embedding):
    """An embedding whose weight's gradient is summed in float32."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return ``[..., H]``."""
        if not self.weight.requires_grad or self.weight.dtype not in LOW:
            return super().forward(ids)
        apply: Any = _Lookup.apply
        embedded: torch.Tensor = apply(ids, self.weight, self.padding_idx)
        return embedded


def logits_of(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``[N, H]·[V, H]ᵀ`` as float32 ``[N, V]``, whatever the precision of the factors."""
    if hidden.dtype not in LOW:
        return (hidden @ weight.T).float()
    if hidden.is_cuda and torch.__version__ >= "2.8":
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    return hidden.float() @ weight.T.float()


class _Logits(torch.autograd.Function):
    """:func:`logits_of`, whose gradient by the hidden state is a product of low precision again."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        return logits_of(hidden, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)
        d_hidden = grad @ weight if ctx.needs_input_grad[0] else None
        return d_hidden, grad.T @ hidden if ctx.needs_input_grad[1] else None


class _Lookup(torch.autograd.Function):
    """Rows of a matrix ``[V, H]``, whose gradient is summed over equal ids before it is rounded.

    Added up in bfloat16, the gradient of a frequent token would stop to grow after some 256 terms.
    """

    @staticmethod
    def forward(
        ctx: Any, ids: torch.Tensor, weight: torch.Tensor, padding: int | None
    ) -> torch.Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.padding = padding
        return embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ids, weight = ctx.saved_tensors
        used, index = ids.flatten().unique(return_inverse=True)
        sums = weight.new_zeros(len(used), weight.shape[1], dtype=torch.float32)
        sums.index_add_(0, index, grads[0].flatten(0, -2).float())
        if ctx.padding is not None:
            sums[used == ctx.padding] = 0.0
        d_weight = torch.zeros_like(weight)
        d_weight[used] = sums.to(weight.dtype)
        return None, d_weight, None
