"""Attention over continuous batching's paged cache in which a request reads its own pages only.

Where no flash kernel is there, transformers packs all requests into one row, and lets every query
look at every key of every request through a dense mask: its cost is quadratic in their number.
Here the requests of a forward pass are sorted into groups of like shape, and each group is one
batched call of torch's attention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = "vf_paged"


@dataclass(frozen=True, slots=True)
class Part:
    """Requests that are attended to in one call.

    Attributes:
        rows: Places of their queries among all, int64 ``[requests * queries]``.
        keys: Where theirs are among the keys, once these have been put in order.
        requests: How many they are.
        mask: What a query may see, bool ``[requests, 1, queries, keys]``; None stands for all
            before it and itself.
    """

    rows: torch.Tensor
    keys: slice
    requests: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How the requests of a forward pass attend, in all layers of one kind.

    Attributes:
        parts: Together all requests.
        order: The packed keys' places, part by part, int64; None if they are read in order.
    """

    parts: list[Part]
    order: torch.Tensor | None


def serves(model: Any) -> bool:
    """Say whether this attention can stand in for the model's own while it generates."""
    config = model.config.get_text_config()
    configs = [
        m.config for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "config")
    ]
    return config._attn_implementation == "sdpa" and all(c is config for c in configs)


@contextmanager
def selected(model: Any) -> Iterator[None]:
    """Use this attention in the model while the context is open."""
    config = model.config.get_text_config()
    before, config._attn_implementation = config._attn_implementation, NAME
    try:
        yield
    finally:
        config._attn_implementation = before


class PagedModel:
    """The trainer's module as continuous batching calls it: it attends in this module's way.

    The module itself is left as it was between the calls, for the trainer runs it too.
    """

    def __init__(self, model: Any) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, attend)
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, **batch: Any) -> Any:
        """Run the module on a batch that continuous batching has prepared."""
        ends_q, read_index = batch["cu_seq_lens_q"], list(batch["read_index"])
        window = getattr(self._model.config.get_text_config(), "sliding_window", None)
        plans: dict[str, Plan] = {}
        for kind, allocator in batch["cache"].cache_allocators.items():
            slides = kind == "sliding_attention"
            ends_k = batch["cu_seq_lens_k"][kind]
            parts, order = divide(
                ends_q.tolist(), ends_k.tolist(), window if slides else None, device=ends_q.device
            )
            index = read_index[allocator.index]
            # Keys are read in our order, without a copy more, unless they do not come from the
            # cache: in a first prefill, or, with a sliding window, those of the new tokens.
            if index.numel() and not slides:
                read_index[allocator.index] = index[order]
                plans[kind] = Plan(parts, None)
            else:
                plans[kind] = Plan(parts, order)
        batch |= {"read_index": read_index, "paged_plans": plans, "attention_mask": None}
        with selected(self._model):
            return self._model(**batch)


def divide(
    ends_q: list[int], ends_k: list[int], window: int | None, device: torch.device
) -> tuple[list[Part], torch.Tensor]:
    """Sort requests into parts.

    The requests of a part have equally many queries, and of any two the longer has less than
    twice the other's keys: no more than half of what is read is padding.

    Args:
        ends_q: 0, then where each request ends among the queries.
        ends_k: 0, then where each request ends among the keys; a request's last query sees its
            last key.
        window: Most keys that a query sees.
        device: Of the tensors.

    Returns:
        The parts, and the keys' places in their order: int64 ``[keys, with padding]``. Padding
        repeats a request's last key, and is masked.
    """
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for request in range(len(ends_q) - 1):
        queries = ends_q[request + 1] - ends_q[request]
        keys = ends_k[request + 1] - ends_k[request]
        alike[queries, keys.bit_length()].append(request)
    parts, orders, begin = [], [], 0
    for (queries, _), members in alike.items():
        first_q = torch.tensor([ends_q[i] for i in members], device=device)
        first_k = torch.tensor([ends_k[i] for i in members], device=device)
        lengths = [ends_k[i + 1] - ends_k[i] for i in members]
        widest, length = max(lengths), torch.tensor(lengths, device=device)
        places = torch.arange(widest, device=device)
        orders.append((first_k[:, None] + places.clamp(max=(length - 1)[:, None])).flatten())
        steps = torch.arange(queries, device=device)
        mask = None
        if queries != widest or len({*lengths}) > 1 or (window and window < widest):
            last = (length - queries)[:, None, None] + steps[:, None]  # that each query sees
            mask = places <= last
            if window:
                mask &= places > last - window
            mask = mask[:, None]
        end = begin + len(members) * widest
        rows = (first_q[:, None] + steps).flatten()
        parts.append(Part(rows, slice(begin, end), len(members), mask))
        begin = end
    return parts, torch.cat(orders)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    cache: Any,
    paged_plans: dict[str, Plan],
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write new keys and values to the cache, and attend to those of each request.

    Args:
        module: The attention layer.
        query: ``[1, heads, queries, size]``.
        key: ``[1, key heads, queries, size]``.
        value: Likewise.
        attention_mask: Unused.
        cache: Continuous batching's.
        paged_plans: By kind of layer.
        scaling: Of the scores; by default one over the root of ``size``.
        kwargs: What continuous batching passes on to the cache.

    Returns:
        ``[1, queries, heads, size]``, and None for the weights.
    """
    if kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        raise ValueError("the embedded engine's attention has no softcap and no position bias")
    layer: int = module.layer_idx  # type: ignore[assignment]
    plan = paged_plans[cache.layer_to_allocator[layer].layer_type]
    key, value = cache.update(key, value, layer, kwargs)
    if plan.order is not None:
        key, value = (x.index_select(2, plan.order) for x in (key, value))
    queries = query[0].transpose(0, 1)
    out = queries.new_empty(*queries.shape[:2], value.shape[-1])
    for part in plan.parts:
        packed = (queries[part.rows], *(x[0, :, part.keys].transpose(0, 1) for x in (key, value)))
        # From [tokens, heads, size] to [requests, heads, tokens of each, size].
        q, k, v = (x.view(part.requests, -1, *x.shape[1:]).transpose(1, 2) for x in packed)
        found = scaled_dot_product_attention(
            query=q,
            key=k,
            value=v,
            attn_mask=part.mask,
            is_causal=part.mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        out[part.rows] = found.transpose(1, 2).flatten(0, 1)
    return out[None], None
