"""LoRA layers computed as the embedded engine computes them: with the adapter merged.

In float32 the engine adds an adapter to a copy of the base layer's weight
(:mod:`vf.inference.embedded.adapters`). The forward pass here does the same, so both have the same
bits; the backward pass never makes the gradient of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vf.inference.embedded.adapters import LoraLayers


class _Merged(torch.autograd.Function):
    """y = x (W + s·B·A)ᵀ + b, for x ``[..., I]``, W ``[O, I]``, A ``[r, I]`` and B ``[O, r]``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        base: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        weight = torch.addmm(base, up, down, alpha=scale)
        ctx.save_for_backward(x, weight, down, up)
        ctx.scale = scale
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, down, up = ctx.saved_tensors
        rows, grad = x.flatten(0, -2), grads[0].flatten(0, -2)
        d_x = (grad @ weight).view_as(x) if ctx.needs_input_grad[0] else None
        d_down = (grad @ up).T @ rows * ctx.scale
        d_up = grad.T @ (rows @ down.T) * ctx.scale
        return d_x, None, None, d_down, d_up, None


@contextmanager
def merged(layers: LoraLayers) -> Iterator[None]:
    """Compute the plain LoRA layers of a model in this way until the block ends; others as usual.

    Their base weights must be frozen, and their adapters without dropout.
    """
    apply: Any = _Merged.apply

    def find(layer: Any) -> Any:
        if (plain := layers.plain(layer)) is None or plain[0].weight.dtype != torch.float32:
            return None
        base, down, up, scale = plain
        return lambda x: apply(x, base.weight, base.bias, down.weight, up.weight, scale)

    with layers.replaced(find):
        yield
