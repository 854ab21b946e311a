"""LoRA layers with fewer operations, while the engine generates.

peft adds an adapter's part to the base layer's in six operations, with modules and casts between
them. In a pass of few tokens these take longer than the arithmetic. In float32 the adapter is
merged into a copy of the base layer's weight, which differs from the two by a rounding of 2⁻²⁴ and
takes one operation. In low precision that rounding would change what is sampled: there it takes
three operations on the same weights, and the result differs by the order of sums only.

To a tensor of all experts of a layer, peft adds the update of all of them in every pass. In float32
the sum is kept as well. In low precision, where models are large, a copy of all experts is more
memory than there is to spare: peft's own forward stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.func import functional_call

Forward = Callable[..., Any]
Find = Callable[[Any], Forward | None]


class LoraLayers:
    """The LoRA layers of a module that can be computed this way.

    Args:
        model: The model; it may have none.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers: list[Any] = []
        self._experts: list[Any] = []
        self._merged: dict[Any, torch.Tensor] = {}
        if "peft" not in sys.modules:  # whose layers it has none of, then: spare its import
            return
        from peft.tuners.lora import Linear, ParamWrapper

        self._layers = [module for module in model.modules() if type(module) is Linear]
        wrappers = [module for module in model.modules() if type(module) is ParamWrapper]
        # The adapters of several tensors of one module are nested; the outermost is called.
        inner = {wrapper.base_layer for wrapper in wrappers}
        self._experts = [wrapper for wrapper in wrappers if wrapper not in inner]

    @contextmanager
    def fused(self) -> Iterator[None]:
        """Compute them with fewer operations until the block ends.

        Their weights and what of them is active must not change meanwhile, nor from one block to
        the next without :meth:`forget`.
        """
        with self.replaced(self._forward, self._tensors):
            yield

    @contextmanager
    def replaced(self, linear: Find, experts: Find = lambda _: None) -> Iterator[None]:
        """Give layers other forwards until the block ends.

        Args:
            linear: Returns that of a LoRA layer; None leaves it its own.
            experts: The same for a module whose tensors are adapted.
        """
        changed = []
        try:
            for layers, find in ((self._layers, linear), (self._experts, experts)):
                for layer in layers:
                    if (forward := find(layer)) is not None:
                        layer.forward = forward
                        changed.append(layer)
            yield
        finally:
            for layer in changed:
                del layer.forward

    def forget(self) -> None:
        """Drop what was computed from the weights, which are about to change."""
        self._merged.clear()

    def plain(self, layer: Any) -> tuple[torch.nn.Linear, Any, Any, float] | None:
        """Return a layer's base, A, B and scale, or None if it is more than one plain LoRA."""
        name, base = _only_adapter(layer), layer.base_layer
        if name is None or type(base) is not torch.nn.Linear or name in layer.lora_variant:
            return None
        down, up, scale = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
        if type(down) is not torch.nn.Linear or up.bias is not None:
            return None
        return base, down, up, scale

    def _forward(self, layer: Any) -> Forward | None:
        if (plain := self.plain(layer)) is None:
            return None
        base, down, up, scale = plain
        if base.weight.dtype == down.weight.dtype == torch.float32:
            if layer not in self._merged:
                self._merged[layer] = torch.addmm(base.weight, up.weight, down.weight, alpha=scale)
            weight = self._merged[layer]
            return lambda x: torch.nn.functional.linear(x, weight, base.bias)
        return _in_three(base, down.weight.t(), up.weight.t(), scale)

    def _tensors(self, outermost: Any) -> Forward | None:
        """Return the forward of a module whose tensors are adapted, or None as above."""
        base, wrapper = outermost.get_base_layer(), outermost
        merged = {}
        while wrapper is not base:
            name, weight = _only_adapter(wrapper), wrapper.get_param()
            if name is None or weight.dtype != torch.float32:
                return None
            if wrapper not in self._merged:
                self._merged[wrapper] = weight + wrapper.get_delta_weight(name)
            merged[wrapper.parameter_name] = self._merged[wrapper]
            wrapper = wrapper.base_layer
        return lambda *args, **options: functional_call(base, merged, args, options)


def _only_adapter(layer: Any) -> str | None:
    """Return the name of the one adapter that a layer computes with; None if it is not one."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    plain = len(names) == 1 and not layer.disable_adapters and not layer.merged
    return names[0] if plain and "forward" not in vars(layer) else None


def _in_three(base: torch.nn.Linear, a: torch.Tensor, b: torch.Tensor, scale: float) -> Forward:
    weight, bias = base.weight.t(), base.bias

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
