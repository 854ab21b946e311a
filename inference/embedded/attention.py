"""Attention over a cache in which every context is contiguous, for any model of transformers'.

A forward pass is one row of tokens, of many requests. Requests with one token in it, as when they
decode, are attended to together, by views on the cache: no key is copied. On a CPU that is done by
products, and what many of them begin with is read once for all, where it was computed once
(Hydragen, arXiv:2402.05099, with one softmax for both parts). Each of the others is a call of its
own.

Query heads that share a key head are passed as its queries, or the key head is repeated without a
copy. So no call asks torch for grouped heads and a mask at once, for which CUDA has only the slow
kernel: with as many heads of keys as of queries, a mask is what its memory-efficient kernel takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from vf.inference import attention_interface, invariant
from vf.inference.attention_interface import UnsupportedAttention, refuse_others
from vf.inference.embedded.cache import KeyValueCache
from vf.inference.embedded.scores import MOST_SCORES, Scores
from vf.inference.embedded.spans import Group, Query, Span

NAME = "vf_cached"
# A call of the kernel costs as much as to read so many keys.
CALL = {"cpu": 512, "cuda": 16384}


class Pass:
    """How the tokens of one forward pass attend, in all layers.

    Args:
        cache: The keys and values.
        queries: One for each request, in the order of their tokens: those with one token first,
            and of them those that share tokens first; then by position within a slot, and by slot.
        device: The model's device.
        deterministic: Whether sums are those of :mod:`vf.inference.invariant`; more tokens than the
            queries' are padding then.
    """

    def __init__(
        self,
        cache: KeyValueCache,
        queries: Sequence[Query],
        device: torch.device,
        *,
        deterministic: bool = False,
    ) -> None:
        self.cache = cache
        self.deterministic = deterministic
        self._device = device
        count = sum(query.count == 1 for query in queries)
        self._singles, self._others = queries[:count], queries[count:]
        positions = [position for query in queries for position in query.positions]
        self._positions = torch.tensor(positions, device=device)
        self._rows: dict[int, torch.Tensor] = {}  # by the number of key heads
        self._longest = max((query.past + 1 for query in self._singles), default=0)
        self._groups: dict[bool, list[Group]] = {}  # by whether what is shared is read once
        self._group_masks: dict[Group, torch.Tensor] = {}
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
            scale: Factor of the scores.
            window: Most keys that a token sees; None for all.
            more: Sinks and a cap.

        Returns:
            ``[T, H, E]``.
        """
        heads = key.shape[1]
        if heads not in self._rows:
            self._rows[heads] = self.cache.rows(self._positions, heads)
        count = len(self._positions)
        keys, values = self.cache.write(layer, self._rows[heads], key[:count], value[:count])
        outputs = []
        first = 0
        plain = self._is_plain(query, window, more)
        for group in self._grouped(plain):
            q = query[first : first + group.count]
            if plain and not self.deterministic:
                outputs.append(self._attend_plain(group, q, keys, values, scale))
            else:
                outputs.append(self._attend_group(group, q, keys, values, scale, window, more))
            first += group.count
        for index, request in enumerate(self._others):
            q = query[first : first + request.count]
            outputs.append(self._attend_one(index, request, q, keys, values, scale, window, more))
            first += request.count
        if count < len(query):
            outputs.append(query.new_zeros(len(query) - count, query.shape[1], value.shape[-1]))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _is_plain(self, query: torch.Tensor, window: int | None, more: Scores | None) -> bool:
        """Return whether products attend for requests with one token, as on a CPU they may.

        Every token sees all of what it follows, and scores have the precision of the queries, and
        room in memory.
        """
        return (
            self._device.type == "cpu"
            and query.dtype in (torch.float32, torch.float64)
            and more is None
            and (window is None or window >= self._longest)
            and len(self._singles) * query.shape[1] * self._longest <= MOST_SCORES
        )

    def _grouped(self, once: bool) -> list[Group]:
        """Return the groups of requests with one token.

        Args:
            once: Whether what is shared is read once.
        """
        if once not in self._groups:
            count = sum(query.shared > 0 for query in self._singles) if once else 0
            call = CALL.get(self._device.type, CALL["cuda"])
            shared = self._singles[0].shared if count else 0
            self._groups[once] = [
                Group.of(queries, self.cache.size, call, self._device, shared=first)
                for queries, first in ((self._singles[:count], shared), (self._singles[count:], 0))
                if queries
            ]
        return self._groups[once]

    def _attend_group(
        self,
        group: Group,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        window: int | None,
        more: Scores | None,
    ) -> torch.Tensor:
        query = _placed(group, query)
        parts = []
        for span, own, k, v in self._cut(group, keys, values):
            q = query[own].reshape(*k.shape[:2], -1, k.shape[-1])
            mask = self._span_mask(span, query, window)
            if self.deterministic:
                first = self._shared(group, keys, values) if group.shared else None
                part, _ = invariant.attend(q, k, v, mask, scale, first)
            elif more is None:
                part = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            else:
                part = more.attend(q, k, v, mask, scale)
            parts.append(part.flatten(1, 2))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out if group.rows is None else out.index_select(0, group.rows)

    def _cut(
        self, group: Group, keys: torch.Tensor, values: torch.Tensor
    ) -> Iterator[tuple[Span, slice, torch.Tensor, torch.Tensor]]:
        """Yield each span, its rows among the group's, its keys and values, ``[B, K, W, D]``."""
        first = 0
        for span in group.spans:
            count = len(span.lengths)
            slot, offset = divmod(span.start, self.cache.size)
            k, v = (x[slot : slot + count, :, offset : offset + span.width] for x in (keys, values))
            yield span, slice(first, first + count), k, v
            first += count

    def _shared(
        self, group: Group, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values that a group shares, ``[K, F, D]`` and ``[K, F, E]``."""
        slot, offset = divmod(group.spans[0].start - group.shared, self.cache.size)
        own = slice(offset, offset + group.shared)
        return keys[slot, :, own], values[slot, :, own]

    def _attend_plain(
        self,
        group: Group,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attend by products to what each request has of its own, and a group shares, read once.

        For queries of one token they are faster than torch's kernel, by up to two times where
        requests are many and short. Both parts of the scores are in one softmax, so nothing differs
        from attending to each request's own copy but the order of sums. A product of the shared
        part has the queries of all requests as its rows; one of the other has those of one request.
        """
        query = _placed(group, query)
        requests, heads, shared = len(query), keys.shape[1], group.shared
        q = (query * scale).view(requests, heads, -1, query.shape[-1])
        parts = [*self._cut(group, keys, values)]
        if len(parts) == 1:
            scores = q @ parts[0][2].mT
        else:
            scores = q.new_zeros(*q.shape[:3], max(span.width for span in group.spans))
            for span, rows, k, _ in parts:
                scores[rows, ..., : span.width] = q[rows] @ k.mT
        scores += self._group_mask(group, scores)
        if shared:
            key, value = self._shared(group, keys, values)
            first = (q.transpose(0, 1).flatten(1, 2) @ key.mT).view(heads, requests, -1, shared)
            scores = torch.cat([first.transpose(0, 1), scores], -1)
        weights = scores.softmax(-1)
        products = [
            weights[rows, ..., shared : shared + span.width] @ v for span, rows, _, v in parts
        ]
        out = products[0] if len(products) == 1 else torch.cat(products)
        if shared:
            rest = weights[..., :shared].transpose(0, 1).flatten(1, 2) @ value
            out.add_(rest.view(heads, requests, *out.shape[2:]).transpose(0, 1))
        out = out.flatten(1, 2)
        return out if group.rows is None else out.index_select(0, group.rows)

    def _group_mask(self, group: Group, like: torch.Tensor) -> torch.Tensor:
        """Return what is added to a group's scores of what is not shared, ``[B, 1, 1, W]``."""
        if group not in self._group_masks:
            ends = torch.tensor([length for span in group.spans for length in span.lengths])
            hidden = torch.arange(like.shape[-1]) >= ends[:, None]
            self._group_masks[group] = _additive(hidden, like)[:, None, None]
        return self._group_masks[group]

    def _span_mask(
        self, span: Span, query: torch.Tensor, window: int | None
    ) -> torch.Tensor | None:
        """Return what is added to a span's scores, ``[B, 1, 1, width]``."""
        if window is not None and window >= span.width:
            window = None
        key = (id(span), window)
        if key not in self._masks:
            mask = None
            if window is not None or min(span.lengths) < span.width:
                ends = torch.tensor(span.lengths, device=self._device)[:, None]
                positions = torch.arange(span.width, device=self._device)
                hidden = positions >= ends
                if window is not None:
                    hidden |= positions < ends - window
                mask = _additive(hidden, query)[:, None, None]
            self._masks[key] = mask
        return self._masks[key]

    def _attend_one(
        self,
        index: int,
        request: Query,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        window: int | None,
        more: Scores | None,
    ) -> torch.Tensor:
        length = request.past + request.count
        tokens, heads, width = query.shape
        key_heads = keys.shape[1]
        slot, first = divmod(request.start, self.cache.size)
        # Key heads are the batch, [K, G, T, D], and each is repeated for its G query heads.
        q = query.reshape(tokens, key_heads, -1, width).permute(1, 2, 0, 3)
        k, v = (
            x[slot, :, None, first : first + length].expand(-1, heads // key_heads, -1, -1)
            for x in (keys, values)
        )
        mask = self._mask(index, request, query, window)
        if self.deterministic:
            q = query.reshape(tokens, key_heads, -1, width).transpose(0, 1).flatten(1, 2)
            k, v = (x[slot, None, :, first : first + length] for x in (keys, values))
            if mask is None:
                mask = query.new_full((tokens, length), -torch.inf).triu_(1)
            mask = mask.repeat_interleave(heads // key_heads, 0)
            out, _ = invariant.attend(q[None], k, v, mask, scale)
            out = out.reshape(key_heads, tokens, heads // key_heads, -1)
            return out.transpose(0, 1).flatten(1, 2)
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
        self, index: int, request: Query, query: torch.Tensor, window: int | None
    ) -> torch.Tensor | None:
        length = request.past + request.count
        if window is not None and window >= length:
            window = None
        if request.past == 0 and window is None and not request.ends:
            return None
        key = (index, window)
        if key not in self._masks:
            own = torch.arange(request.past, length, device=self._device)[:, None]
            positions = torch.arange(length, device=self._device)
            ends = own + 1
            if request.ends:
                ends = torch.tensor(request.ends, device=self._device)[:, None]
            hidden = positions >= ends
            if window is not None:
                hidden |= positions <= own - window
            self._masks[key] = _additive(hidden, query)
        return self._masks[key]


def _placed(group: Group, query: torch.Tensor) -> torch.Tensor:
    """Return a group's queries at their places, and 0 at those of no request."""
    if group.rows is None:
        return query
    padded = query.new_zeros(group.padded, *query.shape[1:])
    return padded.index_copy_(0, group.rows, query)


def _additive(hidden: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


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
        UnsupportedAttention: If the model needs more than causal softmax attention, with or
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
    if vf_pass.deterministic and more is not None:
        raise UnsupportedAttention("deterministic = true, but the model has sinks or capped scores")
    return vf_pass.attend(module.layer_idx, q, k, v, scale, sliding_window, more)[None], None


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Let a model attend in this way until the block ends, in calls with a ``vf_pass``."""
    with attention_interface.attending(model, NAME, attention_forward):
        yield
