"""Low-rank adapters by row: tokens of several adapters go through one model in one pass.

An adapter (LoRA, Hu et al. 2021, arXiv:2106.09685) adds s·(x·Aᵀ)·Bᵀ to the output of a linear
layer. Here it is not inside the model: hooks add it while a block runs, each adapter's to the rows
of its own tokens. So one model in memory serves any number of adapters of any ranks, and one that
is dropped leaves nothing behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

Rows = torch.Tensor | slice

RUNS = 3  # ranges of an adapter's rows that are each computed without copies

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Lora:
    """An adapter; its tensors must not change while an engine samples with it.

    Attributes:
        weights: By the name of a linear layer, A ``[r, in]`` and B ``[out, r]``.
        scale: s, the factor of the product.
        number: Differs from that of every other adapter of this process.
    """

    weights: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    scale: float
    number: int = field(default_factory=lambda: next(_numbers))


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens of a pass that one adapter is for.

    Attributes:
        lora: The adapter.
        rows: Their rows in the inputs of layers: a range, or int64 ``[R]``; None for all rows.
        ready: The same for the input of the head.
    """

    lora: Lora
    rows: Rows | None = None
    ready: Rows | None = None


def parts_of(owners: Sequence[tuple[Lora | None, int, bool]], device: torch.device) -> list[Part]:
    """Return the parts of a pass in which requests follow each other.

    Args:
        owners: Each request's adapter, its number of tokens, and whether its last token's logits
            are computed.
        device: The device of the model.
    """
    if not any(lora for lora, _, _ in owners):
        return []
    if len({lora for lora, _, _ in owners}) == 1:
        return [Part(lora) for lora, _, _ in owners[:1] if lora is not None]
    runs: dict[Lora, list[tuple[range, range]]] = {}
    token = logit = 0
    for lora, same in itertools.groupby(owners, key=lambda owner: owner[0]):
        first = token, logit
        for _, count, last in same:
            token, logit = token + count, logit + last
        if lora is not None:
            runs.setdefault(lora, []).append((range(first[0], token), range(first[1], logit)))
    parts = []
    for lora, own in runs.items():
        if len(own) <= RUNS:
            parts += [Part(lora, *(slice(r.start, r.stop) for r in both)) for both in own]
        else:
            joined = ([*itertools.chain(*ranges)] for ranges in zip(*own, strict=True))
            rows, ready = (torch.tensor(ids, dtype=torch.long, device=device) for ids in joined)
            parts.append(Part(lora, rows, ready))
    return parts


class LoraMixture:
    """Adds adapters to a model's linear layers.

    Args:
        model: A causal language model of transformers'. It stays as it is.
    """

    def __init__(self, model: Any) -> None:
        self._layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        }
        self._head = model.get_output_embeddings()
        self._parts: dict[str, list[Part]] = {}  # by layer, of the block under way
        self._hooks: dict[str, Any] = {}
        self._kept = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Leave hooks in layers from one block to the next, until this one ends."""
        self._kept = True
        try:
            yield
        finally:
            self._kept = False
            self._remove()

    @contextmanager
    def using(self, parts: Sequence[Part]) -> Iterator[None]:
        """Compute with adapters until the block ends; backward passes belong inside of it.

        A block within another one has its own adapters alone.
        """
        outer = self._parts
        by_layer: dict[str, list[Part]] = {}
        for part in parts:
            for name in part.lora.weights:
                by_layer.setdefault(name, []).append(part)
        for name in by_layer.keys() - self._hooks.keys():
            self._hooks[name] = self._layers[name].register_forward_hook(self._hook(name))
        self._parts = by_layer
        try:
            yield
        finally:
            self._parts = outer
            if not self._kept:
                self._remove()

    def _remove(self) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}

    def _hook(self, name: str) -> Any:
        head = self._layers[name] is self._head

        def add(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            parts = self._parts.get(name)
            if not parts:
                return output
            x, out = inputs[0].flatten(0, -2), output.flatten(0, -2)
            for part in parts:
                a, b = part.lora.weights[name]
                rows = part.ready if head else part.rows
                out = _added(out, x, a, b, part.lora.scale, rows)
            return out.view(output.shape)

        return add


def _added(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scale: float,
    rows: Rows | None,
) -> torch.Tensor:
    """Return ``out`` ``[T, O]`` with s·(x·Aᵀ)·Bᵀ added to its rows, or to some of them."""
    inner = torch.mm((x if rows is None else x[rows]).to(a.dtype), a.t())
    if rows is None and out.dtype == b.dtype:
        return torch.addmm(out, inner, b.t(), alpha=scale)
    # Only engines mix, and so change the output in place: without a gradient.
    if isinstance(rows, slice) and out.dtype == b.dtype:
        out[rows].addmm_(inner, b.t(), alpha=scale)
        return out
    update = torch.mm(inner, b.t()).to(out.dtype)
    if rows is None:
        return out + scale * update
    if isinstance(rows, slice):
        out[rows].add_(update, alpha=scale)
        return out
    return out.index_add_(0, rows, update, alpha=scale)
