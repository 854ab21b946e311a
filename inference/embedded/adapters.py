"""LoRA layers with fewer operations, while the engine generates.

peft adds an adapter's part to the base layer's in six operations, with modules and casts between
them. In a pass of few tokens these take longer than the arithmetic. Here they are three, of the
same weights: the result differs by the order of sums only, which merging into the base weights
would not do in low precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class LoraLayers:
    """The LoRA layers of a module that can be computed this way.

    Args:
        model: It may have none.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers: list[Any] = []
        try:
            from peft.tuners.lora import Linear
        except ImportError:
            return
        self._layers = [module for module in model.modules() if type(module) is Linear]

    @contextmanager
    def fused(self) -> Iterator[None]:
        """Compute them with fewer operations until the block ends.

        Their weights and what of them is active must not change meanwhile.
        """
        changed = []
        try:
            for layer in self._layers:
                if (forward := _forward(layer)) is not None:
                    layer.forward = forward
                    changed.append(layer)
            yield
        finally:
            for layer in changed:
                del layer.forward


def _forward(layer: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return a LoRA layer's forward, or None if it is more than a base layer and one plain LoRA."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    base = layer.base_layer
    if (
        len(names) != 1
        or layer.disable_adapters
        or layer.merged
        or type(base) is not torch.nn.Linear
        or "forward" in vars(layer)
        or names[0] in layer.lora_variant
    ):
        return None
    down, up, scale = layer.lora_A[names[0]], layer.lora_B[names[0]], layer.scaling[names[0]]
    if type(down) is not torch.nn.Linear or up.bias is not None:
        return None
    weight, bias, a, b = base.weight.t(), base.bias, down.weight.t(), up.weight.t()

    def forward(x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, -2)
        out = torch.mm(rows, weight) if bias is None else torch.addmm(bias, rows, weight)
        if a.dtype == out.dtype:
            out = torch.addmm(out, torch.mm(rows, a), b, alpha=scale)
        else:
            inner = torch.mm(rows.to(a.dtype), a)
            out = torch.addmm(out.to(a.dtype), inner, b, alpha=scale).to(out.dtype)
        return out.view(*x.shape[:-1], -1)

    return forward
