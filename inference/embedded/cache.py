"""The keys and values of all layers.

A layer's tensors are ``[slots, K, slot, D]``. A slot has room for the longest context, and each
context lies in one of them. So each key head's tokens are contiguous, attention's products read
memory in order, and the heads of contexts in neighbouring slots are the rows of one tensor.

A position is a token's index in all slots: that of its slot times its size, and its index in it.
"""

from __future__ import annotations

import math
import mmap

import torch


class KeyValueCache:
    """Keys and values of all layers.

    A layer's tensors are made when it first has something to write, for only then is its shape
    known.

    Args:
        slots: Number of slots.
        size: Tokens of a slot.
    """

    def __init__(self, slots: int, size: int) -> None:
        self._slots = slots
        self.size = size
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def rows(self, positions: torch.Tensor, heads: int) -> torch.Tensor:
        """Return where tokens are written, int64 ``[T * K]``, given their positions and K."""
        slots = positions.div(self.size, rounding_mode="floor")
        first = positions + slots * (heads - 1) * self.size
        offsets = torch.arange(heads, device=positions.device) * self.size
        return (first[:, None] + offsets).flatten()

    def write(
        self, layer: int, rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new tokens, ``[T, K, D]`` and ``[T, K, E]``, to rows; return all of the layer's."""
        if layer not in self._layers:
            self._layers[layer] = (self._zeros(key), self._zeros(value))
        for held, new in zip(self._layers[layer], (key, value), strict=True):
            held.view(-1, held.shape[-1]).index_copy_(0, rows, new.flatten(0, 1))
        return self._layers[layer]

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy tokens, which are in one slot, to another position; the two may overlap."""
        (source_slot, first), (slot, offset) = divmod(source, self.size), divmod(target, self.size)
        overlap = abs(source - target) < count
        for tensors in self._layers.values():
            for tensor in tensors:
                read = tensor[source_slot, :, first : first + count]
                tensor[slot, :, offset : offset + count] = read.clone() if overlap else read

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        """Return zeros for tokens like ``[T, K, D]``: what was never written is read, masked.

        Raises:
            MemoryError: If there is no room for them.
        """
        shape = (self._slots, like.shape[1], self.size, like.shape[2])
        try:
            if like.device.type != "cpu":
                return like.new_zeros(shape)
            # An anonymous map takes no memory before it is written, and then only for the pages
            # written to: numpy's would be of 2 MB, each of which holds several short contexts.
            raw = mmap.mmap(-1, math.prod(shape) * like.element_size())
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                raw.madvise(mmap.MADV_NOHUGEPAGE)
        except (OSError, OverflowError, RuntimeError) as error:
            raise MemoryError(str(error)) from error
        return torch.frombuffer(raw, dtype=like.dtype).view(shape)
