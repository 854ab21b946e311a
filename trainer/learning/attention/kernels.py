"""The attention of some queries over some keys, with its log-sum-exp, and the gradients of that.

Shapes throughout: queries ``[K, G, Q, D]``, keys and values ``[K, 1, S, D]``, for K key heads with
G query heads each; log-sum-exps ``[K, G, Q]`` in float32, or float64 for float64. A mask ``[Q, S]``
is added to the scores, in the queries' dtype; without one, attention is causal from the top left.
Every query must see a key. The backward passes take the output and the log-sum-exp of all that a
query attends to, of which the keys at hand may be a part.
"""

from __future__ import annotations

import torch

from vf.inference.invariant import attend

ALIGNED = 16  # CUDA's kernel wants rows of a mask to begin at multiples of so many numbers


def empty_mask(queries: int, keys: int, like: torch.Tensor) -> torch.Tensor:
    """Return zeros ``[queries, keys]`` that CUDA's kernel takes as a mask."""
    return like.new_zeros(queries, keys + -keys % ALIGNED)[:, :keys]


def fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output ``[K, G, Q, D]`` and the log-sum-exp ``[K, G, Q]``, by torch's kernel."""
    aten = torch.ops.aten
    key, value = _for_queries(query, key), _for_queries(query, value)
    if query.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        return out, lse
    out, lse, *_ = aten._efficient_attention_forward(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        _for_heads(query, mask),
        None,
        None,
        None,
        None,
        0.0,
        int(mask is None),  # 1: causal from the top left
        True,
        scale=scale,
    )
    return out.transpose(1, 2), lse[..., : query.shape[2]]  # it pads the log-sum-exp


def fused_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of :func:`fused`'s arguments."""
    aten = torch.ops.aten
    key, value = _for_queries(query, key), _for_queries(query, value)
    if query.device.type == "cpu":
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, key, value, out, lse, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        return dq, dk.sum(1, keepdim=True), dv.sum(1, keepdim=True)
    padding = -lse.shape[-1] % 32
    none = torch.zeros((), dtype=torch.long, device=query.device)  # no dropout, no seed
    dq, dk, dv, _ = aten._efficient_attention_backward(
        grad.transpose(1, 2),
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        _for_heads(query, mask),
        out.transpose(1, 2).contiguous(),  # in 16 bits the kernel does not look at its strides
        None,
        None,
        query.shape[2],
        key.shape[2],
        torch.nn.functional.pad(lse.contiguous(), (0, padding), value=float("inf")),
        0.0,
        none,
        none,
        int(mask is None),
        False,
        scale=scale,
    )
    dk, dv = (gradient.transpose(1, 2).sum(1, keepdim=True) for gradient in (dk, dv))
    return dq.transpose(1, 2), dk, dv


def exact(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same as :func:`fused`, with the bits of :mod:`vf.inference.invariant`."""
    kv_heads, groups, count, _ = query.shape
    if mask is None:
        mask = empty_mask(count, key.shape[2], query).fill_(-torch.inf).triu_(1)
    out, lse = attend(
        query.flatten(1, 2)[None],
        key[None, :, 0],
        value[None, :, 0],
        mask.repeat(groups, 1),
        scale,
    )
    shape = kv_heads, groups, count
    return out[0].view(*shape, -1), lse[0].view(shape)


def capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same with scores s capped to cap · tanh(s / cap), which no fused kernel does.

    Scores are float32, whatever the inputs are: a cap lets them be large, where bfloat16 is coarse.
    """
    scores, _ = _scores(query, key, mask, scale, cap)
    lse = scores.logsumexp(-1)
    out = scores.sub_(lse[..., None]).exp_() @ _rows(value, scores)
    return out.view(query.shape[:-1] + out.shape[-1:]).to(query.dtype), lse.view(query.shape[:-1])


def capped_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of :func:`capped`'s arguments; scores are computed again."""
    scores, tanh = _scores(query, key, mask, scale, cap)
    shares = scores.sub_(lse.reshape(len(query), -1, 1)).exp_()
    q, g, o = (_rows(heads, shares) for heads in (query, grad, out))
    k, v = _rows(key, shares), _rows(value, shares)
    dv = shares.mT @ g
    ds = (g @ v.mT).sub_((g * o).sum(-1, keepdim=True)).mul_(shares)
    ds.mul_(tanh.square_().neg_().add_(1.0)).mul_(scale)  # tanh' = 1 − tanh²
    dq, dk = (ds @ k).view(query.shape), ds.mT @ q
    return dq.to(query.dtype), dk[:, None].to(key.dtype), dv[:, None].to(value.dtype)


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return capped and masked scores ``[K, G·Q, S]``, and their tanh."""
    count, keys = query.shape[2], key.shape[2]
    precision = query.new_empty(0, dtype=torch.promote_types(query.dtype, torch.float32))
    tanh = (_rows(query, precision) @ _rows(key, precision).mT).mul_(scale / cap).tanh_()
    scores = tanh * cap
    if mask is None:
        hidden = torch.ones(count, keys, dtype=torch.bool, device=query.device).triu_(1)
        scores.view(len(query), -1, count, keys).masked_fill_(hidden, -torch.inf)
    else:
        scores.view(len(query), -1, count, keys).add_(mask)
    return scores, tanh


def _rows(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Put query heads of one key head below each other: ``[K, G, Q, D]`` to ``[K, G·Q, D]``."""
    return tensor.flatten(1, 2).to(like.dtype)


def _for_queries(query: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    return states.expand(-1, query.shape[1], -1, -1)


def _for_heads(query: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Give CUDA's kernel ``[K, G, Q, S]`` without a copy."""
    return None if mask is None else mask.expand(*query.shape[:2], -1, -1)
