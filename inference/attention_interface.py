"""How a model's layers reach the attention that the trainer and the embedded engine provide.

transformers lets an attention function of one's own be registered by a name
(``AttentionInterface``), and with it a function that makes masks (``AttentionMaskInterface``). A
model describes each of its masks by a function of two indices. Neither attention here wants the
mask as a matrix: :class:`Reach` asks that function for the first position that each query sees.
So windows and chunks are the model's own, whatever they are called in its config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

CHECKED = 16  # positions whose whole row of the mask is looked at


class UnsupportedAttention(ValueError):
    """The model asks for an attention that is not computed here."""


class Reach:
    """How far back the tokens of a sequence see: a window, a chunk.

    Args:
        mask_function: The model's; whether a key is seen, from a batch's, a head's, the query's and
            the key's index, which are broadcast.
        device: The device of the indices.
    """

    def __init__(self, mask_function: Callable[..., torch.Tensor], device: torch.device) -> None:
        self._function = mask_function
        self._device = device
        self._zero = torch.zeros((), dtype=torch.long, device=device)

    def first(self, length: int) -> torch.Tensor:
        """Return the first position that each of the first ones sees; it sees all from there on.

        Args:
            length: The sequence's length in tokens.

        Returns:
            int64 ``[length]`` on the CPU; it never decreases.

        Raises:
            UnsupportedAttention: If the mask is not of this kind.
        """
        own = torch.arange(length, device=self._device)
        low, high = torch.zeros_like(own), own
        for _ in range(length.bit_length()):  # bisect for all positions at once
            middle = (low + high) // 2
            seen = self._sees(own, middle)
            low, high = torch.where(seen, low, (middle + 1).minimum(own)), high.where(~seen, middle)
        rows = own[:: max(1, length // CHECKED)]
        expected = (own <= rows[:, None]) & (own >= high[rows, None])
        if not torch.equal(self._sees(rows[:, None], own), expected):
            raise UnsupportedAttention("the model's mask is not causal, or has holes")
        return high.cpu()

    def __getitem__(self, slices: tuple[slice, ...]) -> Reach:
        """Return the mask of all queries and keys.

        Models cut their masks to the queries whose logits are wanted, which are all of them here.

        Raises:
            UnsupportedAttention: If they are not all queries.
        """
        if any(part not in (slice(None), slice(0, None)) for part in slices):
            raise UnsupportedAttention("the model leaves out queries")
        return self

    def _sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        mask = self._function(self._zero, self._zero, query, key)
        seen: torch.Tensor = mask.expand_as(query + key)
        return seen


def _reach(
    *, mask_function: Callable[..., torch.Tensor], device: torch.device | str, **_: Any
) -> Reach | None:
    """Make a mask as transformers' ``AttentionMaskInterface`` asks it: None where all is seen."""
    from transformers.masking_utils import causal_mask_function

    if mask_function is causal_mask_function:
        return None
    return Reach(mask_function, torch.device(device))


@contextmanager
def attending(model: Any, name: str, attention: Callable[..., Any]) -> Iterator[None]:
    """Let a model attend by a function until the block ends; a vision tower attends as before.

    Calls of the model need an ``attention_mask`` of ones: without one, transformers takes positions
    that do not count on for the beginning of another sequence. Nobody else may run the module
    meanwhile.

    Args:
        model: One of transformers'.
        name: For the function, among all that are registered with transformers.
        attention: A function with the parameters of ``AttentionInterface``.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, _reach)
    parts = {part: getattr(model.config, part, None) for part in model.config.sub_configs}
    before = {
        part: config._attn_implementation for part, config in parts.items() if config is not None
    }
    before[""] = model.config._attn_implementation
    seeing = "vision_config"
    kept = {seeing: before[seeing]} if seeing in before else {}
    model.set_attn_implementation(dict.fromkeys(before, name) | kept)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def scaled_by_position(module: Any, query: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return queries with the length that their positions give them.

    Llama 4 makes queries of layers without rotary positions longer as a sequence grows, and counts
    places in the row for it (``attn_temperature_tuning``), whatever the ``position_ids`` are.

    Args:
        module: The layer that attends.
        query: ``[1, H, T, D]``, as the layer has it.
        positions: int64 ``[T]``.
    """
    if not getattr(module, "attn_temperature_tuning", False) or getattr(module, "use_rope", True):
        return query

    def scale(rows: torch.Tensor) -> torch.Tensor:
        steps = torch.floor((rows.float() + 1.0) / module.floor_scale)
        factor: torch.Tensor = torch.log1p(steps) * module.attn_scale + 1.0
        return factor

    rows = torch.arange(len(positions), device=positions.device)
    return query * (scale(positions) / scale(rows))[:, None].to(query.dtype)


def refuse_others(
    module: Any, mask: Any, sliding_window: int | None, longest: int, others: dict[str, Any]
) -> Reach | None:
    """Refuse what neither attention computes.

    Args:
        module: The layer that attends.
        mask: The model's mask: a :class:`Reach`, None, or one of another kind.
        sliding_window: The one that the layer asks for beside the mask.
        longest: Tokens of the longest sequence.
        others: More arguments of the attention.

    Returns:
        How far back tokens see; None for all the way.

    Raises:
        UnsupportedAttention: If the layer asks for something else.
    """
    if mask is not None and not isinstance(mask, Reach):
        raise UnsupportedAttention("the model makes a mask of its own")
    if mask is None and sliding_window is not None and sliding_window < longest:
        raise UnsupportedAttention(f"a window of {sliding_window} tokens that is in no mask")
    if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        raise UnsupportedAttention("the model's attention is not causal")
    if others.get("position_bias") is not None:
        raise UnsupportedAttention("the model's attention has position_bias")
    return mask
