"""Attention over a cache in which every context is contiguous, for any model of transformers'.

A forward pass is one row of tokens, of many requests. Requests with one token in it, as when they
decode, are attended to together, by views on the cache: no key is copied. Each of the others is a
call of its own.

Query heads that share a key head are passed as its queries, or the key head is repeated without a
copy. So no call asks torch for grouped heads and a mask at once, for which CUDA has only the slow
kernel: with as many heads of keys as of queries, a mask is what its memory-efficient kernel takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from vf.inference import attention_interface
from vf.inference.attention_interface import UnsupportedAttention, refuse_others
from vf.inference.embedded.scores import MOST_SCORES, Scores

NAME = "vf_cached"
# A call of the kernel costs as much as to read so many keys.
CALL = {"cpu": 256, "cuda": 16384}


@dataclass(frozen=True, slots=True)
class Query:
    """What one request has in a forward pass.

    Attributes:
        block: Where its context's block begins in the cache, in tokens.
        size: Of its block, in tokens.
        past: Tokens that the cache holds of it.
        count: New tokens.
    """

    block: int
    size: int
    past: int
    count: int


@dataclass(slots=True)
class Span:
    """Neighbouring blocks of one size, whose requests are attended to in one call.

    Attributes:
        first: The first block's place among those of its size.
        size: Tokens in a block.
        lengths: How many keys each block's request has; 1 for a block between that has no request
            here.
        width: The most of them.
    """

    first: int
    size: int
    lengths: list[int]
    width: int


class KeyValueCache:
    """Keys and values of all layers.

    A layer's tensors are made when it first has something to write, for only then is its shape
    known.

    Args:
        tokens: How many it has room for.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(
        self, layer: int, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new tokens, ``[T, K, D]`` to ``places``; return all of the layer's."""
        if layer not in self._layers:
            self._layers[layer] = (_zeros(self._tokens, key), _zeros(self._tokens, value))
        keys, values = self._layers[layer]
        keys.index_copy_(0, places, key)
        values.index_copy_(0, places, value)
        return keys, values

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy tokens to another place; the two may overlap."""
        overlap = abs(source - target) < count
        for tensors in self._layers.values():
            for tensor in tensors:
                read = tensor[source : source + count]
                tensor[target : target + count] = read.clone() if overlap else read


def _zeros(tokens: int, like: torch.Tensor) -> torch.Tensor:
    """Return ``[tokens, K, D]`` of zeros: what was never written is read, masked, by a span.

    Raises:
        MemoryError: There is no room for them.
    """
    shape = (tokens, *like.shape[1:])
    try:
        if like.device.type != "cpu":
            return like.new_zeros(shape)
        # numpy's zeros take no memory before they are written.
        raw = np.zeros(math.prod(shape) * like.element_size(), np.uint8)
    except (RuntimeError, ValueError) as error:  # torch's way to say so, and numpy's of huge ones
        raise MemoryError(str(error)) from error
    return torch.from_numpy(raw).view(like.dtype).view(shape)


class Pass:
    """How the tokens of one forward pass attend, in all layers.

    Args:
        cache: The keys and values.
        queries: Of each request, in the order of their tokens: those with one token first, by size
            and place of their blocks.
        device: Of the model.

    Attributes:
        places: Where each new token is in the cache, int64 ``[T]``.
    """

    def __init__(
        self, cache: KeyValueCache, queries: Sequence[Query], device: torch.device
    ) -> None:
        self.cache = cache
        self._device = device
        self._singles = sum(query.count == 1 for query in queries)
        self._others = queries[self._singles :]
        self._spans, rows = spans(queries[: self._singles], CALL.get(device.type, CALL["cuda"]))
        # Where each request is among the blocks of all spans, if there are others between.
        self._padded = sum(len(span.lengths) for span in self._spans)
        self._rows = None
        if self._padded > self._singles:
            self._rows = torch.tensor(rows, device=device)
        places = [q.block + place for q in queries for place in range(q.past, q.past + q.count)]
        self.places = torch.tensor(places, device=device)
        self._masks: dict[tuple[int, int | None], torch.Tensor | None] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
        more: Scores | None = None,
    ) -> torch.Tensor:
        """Write new keys and values to the cache, and attend to those of each request.

        Args:
            layer: Its number.
            query: ``[T, H, D]``.
            key: ``[T, K, D]``; H is a multiple of K.
            value: ``[T, K, E]``.
            scale: Of the scores.
            window: Most keys that a token sees; None for all.
            more: Sinks and a cap.

        Returns:
            ``[T, H, E]``.
        """
        keys, values = self.cache.write(layer, self.places, key, value)
        found = []
        if self._singles:
            found.append(
                self._attend_singles(query[: self._singles], keys, values, scale, window, more)
            )
        first = self._singles
        for index, each in enumerate(self._others):
            rows = query[first : first + each.count]
            found.append(self._attend_one(index, each, rows, keys, values, scale, window, more))
            first += each.count
        return found[0] if len(found) == 1 else torch.cat(found)

    def _attend_singles(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        window: int | None,
        more: Scores | None,
    ) -> torch.Tensor:
        heads = keys.shape[1]
        if self._rows is not None:
            padded = query.new_zeros(self._padded, *query.shape[1:])
            query = padded.index_copy_(0, self._rows, query)
        found, first = [], 0
        for index, span in enumerate(self._spans):
            count = len(span.lengths)
            q = query[first : first + count].reshape(count, heads, -1, query.shape[-1])
            k, v = _rows(keys, span), _rows(values, span)
            mask = self._span_mask(index, span, query, window)
            if more is None:
                out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            else:
                out = more.attend(q, k, v, mask, scale)
            found.append(out.reshape(count, query.shape[1], -1))
            first += count
        out = found[0] if len(found) == 1 else torch.cat(found)
        return out if self._rows is None else out.index_select(0, self._rows)

    def _span_mask(
        self, index: int, span: Span, query: torch.Tensor, window: int | None
    ) -> torch.Tensor | None:
        if window is not None and window >= span.width:
            window = None
        if (index, window) not in self._masks:
            mask = None
            if window is not None or min(span.lengths) < span.width:
                ends = torch.tensor(span.lengths, device=self._device)[:, None]
                places = torch.arange(span.width, device=self._device)
                hidden = places >= ends
                if window is not None:
                    hidden |= places < ends - window
                mask = _additive(hidden, query)[:, None, None]
            self._masks[index, window] = mask
        return self._masks[index, window]

    def _attend_one(
        self,
        index: int,
        each: Query,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        window: int | None,
        more: Scores | None,
    ) -> torch.Tensor:
        length = each.past + each.count
        tokens, heads, width = query.shape
        key_heads = keys.shape[1]
        # Key heads are the batch, [K, G, T, D], and each is repeated for its G query heads.
        q = query.reshape(tokens, key_heads, -1, width).permute(1, 2, 0, 3)
        k, v = (
            x[each.block : each.block + length]
            .transpose(0, 1)[:, None]
            .expand(-1, heads // key_heads, -1, -1)
            for x in (keys, values)
        )
        mask = self._mask(index, each, query, window)
        if more is None:
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
            )
        else:
            if mask is None:
                mask = query.new_full((tokens, length), -torch.inf).triu(1)
            step = max(1, MOST_SCORES // (heads * length))
            parts = [
                more.attend(q[:, :, rows], k, v, mask[rows], scale, rows=True)
                for rows in (slice(start, start + step) for start in range(0, tokens, step))
            ]
            out = torch.cat(parts, 2)
        return out.permute(2, 0, 1, 3).flatten(1, 2)

    def _mask(
        self, index: int, each: Query, query: torch.Tensor, window: int | None
    ) -> torch.Tensor | None:
        length = each.past + each.count
        if window is not None and window >= length:
            window = None
        if each.past == 0 and window is None:
            return None
        key = (len(self._spans) + index, window)
        if key not in self._masks:
            own = torch.arange(each.past, length, device=self._device)[:, None]
            places = torch.arange(length, device=self._device)
            hidden = places > own
            if window is not None:
                hidden |= places <= own - window
            self._masks[key] = _additive(hidden, query)
        return self._masks[key]


def _rows(tensor: torch.Tensor, span: Span) -> torch.Tensor:
    """Return a view ``[blocks, K, width, D]`` on a span's tokens."""
    _, heads, width = tensor.shape
    token = heads * width
    return tensor.as_strided(
        (len(span.lengths), heads, span.width, width),
        (span.size * token, width, token, 1),
        span.first * span.size * token,
    )


def _additive(hidden: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def spans(queries: Sequence[Query], call: int) -> tuple[list[Span], list[int]]:
    """Divide requests with one token each into spans.

    A block is added to a span where that is less work than a call more, counted in keys: those
    between are read, too, and all as far as the longest.

    Args:
        queries: By size and place of their blocks.
        call: The keys that a call is worth.

    Returns:
        The spans, and each request's place among the blocks of all of them.
    """
    found: list[Span] = []
    rows, total = [], 0
    for query in queries:
        length, place = query.past + 1, query.block // query.size
        if found and found[-1].size == query.size:
            last = found[-1]
            count, width = place - last.first + 1, max(last.width, length)
            if count * width <= len(last.lengths) * last.width + length + call:
                total += count - len(last.lengths)
                last.lengths += [1] * (count - len(last.lengths) - 1) + [length]
                last.width = width
                rows.append(total - 1)
                continue
        found.append(Span(place, query.size, [length], length))
        total += 1
        rows.append(total - 1)
    return found, rows


def attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    vf_pass: Pass | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' ``AttentionInterface`` asks it: ``[1, H, T, D]`` to ``[1, T, H, D]``.

    Raises:
        UnsupportedAttention: The model wants more of it than causal softmax attention, with or
            without a window.
    """
    if vf_pass is None:
        raise UnsupportedAttention("the model does not pass keyword arguments to its attention")
    reach = refuse_others(module, attention_mask, sliding_window, 0, others)
    if reach is not None and sliding_window is None:
        raise UnsupportedAttention("the model attends in chunks")
    if query.shape[2] != key.shape[2]:
        raise UnsupportedAttention("the model has a cache of its own")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    more = Scores(s_aux, softcap) if s_aux is not None or softcap is not None else None
    return vf_pass.attend(module.layer_idx, q, k, v, scale, sliding_window, more)[None], None


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Let a model attend in this way until the block ends, in calls with a ``vf_pass``."""
    with attention_interface.attending(model, NAME, attention_forward):
        yield
