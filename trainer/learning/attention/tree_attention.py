"""Exact attention over packed sequences and shared prefixes, for any model of transformers'.

It is computed in calls of a kernel that :mod:`vf.trainer.learning.attention.kernel_calls` cuts, and
a token's partial results are merged by their log-sum-exp. An attention sink is one more term of
that sum, with nothing to add to the output: a token's output is multiplied by exp(lse − lse'),
where lse' = log(exp(lse) + exp(sink)).

The backward pass gives each call the merged output and log-sum-exp instead of its own: with
P = exp(S − lse) and D = rowsum(dO ∘ O) over everything that the token attends to, its part of the
gradient is exact (as in ring attention, arXiv:2310.01889). So is a sink's, −Σ exp(sink − lse) D.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from vf.inference.attention_interface import (
    UnsupportedAttention,
    attending,
    refuse_others,
    scaled_by_position,
)
from vf.trainer.learning.attention.kernel_calls import (
    BLOCK,
    AnyCall,
    block_calls,
    segment_calls,
)
from vf.trainer.learning.attention.kernels import (
    capped,
    capped_backward,
    exact,
    fused,
    fused_backward,
)
from vf.trainer.learning.attention.prefix_tree import Segment

NAME = "vf_prefix_tree"
SCORES = 1 << 24  # of all heads in one call where scores are capped: they are in memory then


class _TreeAttention(torch.autograd.Function):
    """Queries ``[K, G, T, D]``, keys and values ``[K, 1, T, D]``: K key heads, G queries each.

    Sinks are ``[K, G]``, or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        calls: Sequence[AnyCall],
        scale: float,
        cap: float | None,
        deterministic: bool,
    ) -> torch.Tensor:
        precision = torch.promote_types(query.dtype, torch.float32)  # the kernels'
        out, lse = _zeros(query), _zeros(query[..., 0], precision)
        for call in calls:
            mask = call.mask(query)
            inputs = call.take(query), call.take_keys(key), call.take_keys(value), mask, scale
            if deterministic:
                part, part_lse = exact(*inputs)
            else:
                part, part_lse = fused(*inputs) if cap is None else capped(*inputs, cap)
            if call.merges:
                before = call.take(lse)
                share = torch.sigmoid(part_lse - before).to(out.dtype)
                part = call.take(out).lerp(part, share[..., None])
                part_lse = torch.logaddexp(before, part_lse)
            call.put(out, part)
            call.put(lse, part_lse)
        if sinks is not None:
            total = torch.logaddexp(lse, sinks[..., None].to(precision))
            out.mul_((lse - total).exp_()[..., None].to(out.dtype))
            lse = total
        ctx.save_for_backward(query, key, value, out, lse, sinks)
        ctx.calls, ctx.scale, ctx.cap = calls, scale, cap
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse, sinks = ctx.saved_tensors
        d_query, d_key, d_value = map(_zeros, (query, key, value))
        d_sinks = None
        for call in ctx.calls:
            inputs = (
                call.real(call.take(grads[0])),
                call.take(query),
                call.take_keys(key),
                call.take_keys(value),
                call.take(out),
                call.take(lse),
                call.mask(query),
                ctx.scale,
            )
            cap = ctx.cap
            dq, dk, dv = fused_backward(*inputs) if cap is None else capped_backward(*inputs, cap)
            call.add(d_query, dq)
            call.add_to_keys(d_key, dk)
            call.add_to_keys(d_value, dv)
        if sinks is not None:
            share = (sinks[..., None] - lse).exp_()
            d_sinks = -(share * (grads[0] * out).sum(-1)).sum(-1).to(sinks.dtype)
        return d_query, d_key, d_value, d_sinks, None, None, None, None


def _zeros(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return zeros ``[K, G, T, ...]`` with the tokens outermost in memory."""
    return torch.zeros_like(
        like.movedim(2, 0), dtype=dtype, memory_format=torch.contiguous_format
    ).movedim(0, 2)


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    calls: Sequence[AnyCall],
    scale: float,
    *,
    sinks: torch.Tensor | None = None,
    cap: float | None = None,
    deterministic: bool = False,
) -> torch.Tensor:
    """Attend along a prefix tree; differentiable.

    Args:
        query: ``[H, T, D]``, H query heads.
        key: ``[K, T, D]``, K key heads; H is a multiple of K.
        value: ``[K, T, D]``.
        calls: The kernel calls; each of the T tokens is a query in one of them.
        scale: The factor of the products of queries and keys.
        sinks: ``[H]``, the logarithm of what is added to the denominator of a head's softmax.
        cap: The bound c of the scores, which become c · tanh(s / c); None for no bound.
        deterministic: Whether sums are the engine's; calls are of whole paths from the root then.

    Returns:
        ``[T, H, D]``, as transformers wants it.
    """
    heads, tokens, width = query.shape
    grouped = query.view(len(key), heads // len(key), tokens, width)
    if sinks is not None:
        sinks = sinks.view(grouped.shape[:2])
    apply: Any = _TreeAttention.apply
    out = apply(grouped, key[:, None], value[:, None], sinks, calls, scale, cap, deterministic)
    merged: torch.Tensor = out.permute(2, 0, 1, 3).flatten(1, 2)
    return merged


def attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    vf_segments: tuple[Segment, ...] | None = None,
    vf_positions: torch.Tensor | None = None,
    vf_longest: int = 0,
    vf_deterministic: bool = False,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' ``AttentionInterface`` asks it: ``[1, H, T, D]`` to ``[1, T, H, D]``.

    Raises:
        UnsupportedAttention: If the model wants more of it than causal softmax attention, in
            windows, chunks, with sinks and capped scores.
    """
    if vf_segments is None or vf_positions is None:
        raise UnsupportedAttention("the model does not pass keyword arguments to its attention")
    reach = refuse_others(module, attention_mask, sliding_window, vf_longest, others)
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise UnsupportedAttention("the model has a cache of its own")
    for name in ("attention_dropout", "attn_dropout"):  # a number, or a layer; 0 in evaluation
        held = getattr(module, name, 0.0)
        if dropout or getattr(held, "p", held):
            raise UnsupportedAttention("the model has dropout in its attention")
    narrower = query.shape[-1] - value.shape[-1]
    if narrower < 0:
        raise UnsupportedAttention("values are wider than keys")
    if vf_deterministic:
        if softcap is not None or s_aux is not None or narrower:
            raise UnsupportedAttention("deterministic = true, but the model's attention is unusual")
        calls: Sequence[AnyCall] = block_calls(vf_segments, None, vf_longest, BLOCK[1])
        if reach is not None:
            raise UnsupportedAttention("deterministic = true, but the model attends in windows")
    elif softcap is None and reach is None:
        calls = segment_calls(vf_segments, key.shape[1], query.device)
    else:
        most = query.shape[2]
        if softcap is not None:
            most = max(1, SCORES // (query.shape[1] * vf_longest))
        calls = block_calls(vf_segments, reach, vf_longest, most)
    if narrower:  # the kernels take one width
        value = torch.nn.functional.pad(value, (0, narrower))
    query = scaled_by_position(module, query, vf_positions)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    heads = query[0], key[0], value[0]
    out = tree_attention(
        *heads, calls, scale, sinks=s_aux, cap=softcap, deterministic=vf_deterministic
    )
    return out[None, ..., : out.shape[-1] - narrower], None


@contextmanager
def switched_on(model: Any) -> Iterator[None]:
    """Let a model attend along prefix trees until the block ends.

    Every call needs the tree (``vf_segments``, ``vf_positions``, ``vf_longest``), and an
    ``attention_mask`` of ones. See :func:`~vf.inference.attention_interface.attending`.
    """
    with attending(model, NAME, attention_forward):
        yield
