"""Exact attention over packed sequences and shared prefixes, for any model of transformers'.

Each :class:`~vf.trainer.learning.prefix_tree.Segment` is one call of a fused kernel: the queries of
the segment and of all its descendants, over the segment's keys, causal from the top left, so that
descendants see all of them. A token's partial results, one per ancestor, are merged by their
log-sum-exp. No mask is made, and no product that a mask would throw away is computed.

The backward pass gives each call the merged output and log-sum-exp instead of its own: with
P = exp(S − lse) and D = rowsum(dO ∘ O) over everything that the token attends to, its part of the
gradient is exact (as in ring attention, arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from vf.trainer.learning.prefix_tree import Segment

NAME = "vf_prefix_tree"


class UnsupportedAttention(Exception):
    """The model asks for an attention that this is not."""


class _TreeAttention(torch.autograd.Function):
    """Queries ``[K, G, T, D]``, keys and values ``[K, 1, T, D]``: K key heads, G queries each."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        segments: Sequence[Segment],
        scale: float,
    ) -> torch.Tensor:
        kv_heads, groups, tokens, width = query.shape
        out = query.new_empty(tokens, kv_heads, groups, width).permute(1, 2, 0, 3)
        precision = torch.promote_types(query.dtype, torch.float32)  # the kernels'
        lse = query.new_empty(kv_heads, groups, tokens, dtype=precision)
        covered = 0
        for each in segments:
            reach, own = slice(each.start, each.last), slice(each.start, each.end)
            part, part_lse = _kernel(query[:, :, reach], key[:, :, own], value[:, :, own], scale)
            if each.start >= covered:  # it has no ancestors
                out[:, :, reach], lse[:, :, reach] = part, part_lse
                covered = each.last
            else:
                before = lse[:, :, reach]
                share = torch.sigmoid(part_lse - before).to(out.dtype)
                out[:, :, reach].lerp_(part, share[..., None])
                lse[:, :, reach] = torch.logaddexp(before, part_lse)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.segments, ctx.scale = segments, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        d_query = torch.empty_like(query)
        d_key, d_value = torch.empty_like(key), torch.empty_like(value)
        covered = 0
        for each in ctx.segments:
            reach, own = slice(each.start, each.last), slice(each.start, each.end)
            dq, dk, dv = _kernel_backward(
                grads[0][:, :, reach],
                query[:, :, reach],
                key[:, :, own],
                value[:, :, own],
                out[:, :, reach],
                lse[:, :, reach],
                ctx.scale,
            )
            if each.start >= covered:
                d_query[:, :, reach] = dq
                covered = each.last
            else:
                d_query[:, :, reach] += dq
            torch.sum(dk, 1, keepdim=True, out=d_key[:, :, own])
            torch.sum(dv, 1, keepdim=True, out=d_value[:, :, own])
        return d_query, d_key, d_value, None, None


def _kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``[K, G, Q, D]`` and the log-sum-exp ``[K, G, Q]``, causal from the top left."""
    aten = torch.ops.aten
    key, value = _for_queries(query, key, value)
    if query.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, True, scale=scale
        )
        return out, lse
    out, lse, *_ = aten._efficient_attention_forward(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        None,
        None,
        None,
        None,
        None,
        0.0,
        1,  # causal from the top left
        True,
        scale=scale,
    )
    return out.transpose(1, 2), lse[..., : query.shape[2]]  # it pads the log-sum-exp


def _kernel_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of :func:`_kernel`'s arguments, those of keys for each query head."""
    aten = torch.ops.aten
    key, value = _for_queries(query, key, value)
    if query.device.type == "cpu":
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = (
            aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, query, key, value, out, lse, 0.0, True, scale=scale
            )
        )
        return found
    padding = -lse.shape[-1] % 32
    none = torch.zeros((), dtype=torch.long, device=query.device)  # no dropout, no seed
    dq, dk, dv, _ = aten._efficient_attention_backward(
        grad.transpose(1, 2),
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        None,
        out.transpose(1, 2),
        None,
        None,
        query.shape[2],
        key.shape[2],
        torch.nn.functional.pad(lse, (0, padding), value=float("inf")),
        0.0,
        none,
        none,
        1,
        False,
        scale=scale,
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _for_queries(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    groups = query.shape[1]
    return key.expand(-1, groups, -1, -1), value.expand(-1, groups, -1, -1)


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Sequence[Segment],
    scale: float,
) -> torch.Tensor:
    """Attend along a prefix tree; differentiable.

    Args:
        query: ``[H, T, D]``, H query heads.
        key: ``[K, T, D]``, K key heads; H is a multiple of K.
        value: ``[K, T, D]``.
        segments: Of the tree; they cover the T tokens.
        scale: What products of queries and keys are multiplied with.

    Returns:
        ``[T, H, D]``, as transformers wants it.
    """
    heads, tokens, width = query.shape
    grouped = query.view(len(key), heads // len(key), tokens, width)
    apply: Any = _TreeAttention.apply
    out = apply(grouped, key[:, None], value[:, None], segments, scale)
    merged: torch.Tensor = out.permute(2, 0, 1, 3).flatten(1, 2)
    return merged


def attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    vf_segments: Sequence[Segment] | None = None,
    vf_longest: int = 0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' ``AttentionInterface`` asks it: ``[1, H, T, D]`` to ``[1, T, H, D]``.

    Raises:
        UnsupportedAttention: The model wants more of it than causal softmax attention.
    """
    if vf_segments is None:
        raise UnsupportedAttention("the model does not hand keyword arguments on to its attention")
    if attention_mask is not None or query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise UnsupportedAttention("the model makes a mask of its own, or has a cache")
    if query.shape[-1] != value.shape[-1]:
        raise UnsupportedAttention("keys and values differ in width")
    for name in ("attention_dropout", "attn_dropout"):  # a number, or a layer; 0 in evaluation
        held = getattr(module, name, 0.0)
        if dropout or getattr(held, "p", held):
            raise UnsupportedAttention("the model has dropout in its attention")
    if sliding_window is not None and sliding_window < vf_longest:
        raise UnsupportedAttention(f"a sliding window of {sliding_window} tokens")
    if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        raise UnsupportedAttention("attention that is not causal")
    for name in ("softcap", "s_aux", "position_bias"):
        if others.get(name) is not None:
            raise UnsupportedAttention(f"the model's attention has {name}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return tree_attention(query[0], key[0], value[0], vf_segments, scale)[None], None


@contextmanager
def switched_on(model: Any) -> Iterator[None]:
    """Let a model attend along prefix trees until the block ends.

    It must be told the tree in every call (``vf_segments``, ``vf_longest``). Nobody else may run
    the module meanwhile: an engine on it is paused while the trainer works.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention_forward)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
