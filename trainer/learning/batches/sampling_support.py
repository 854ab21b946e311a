"""Which tokens each trained token was sampled from, where filters had left some out.

With top-p, top-k or min-p, a token is sampled from the model's distribution restricted to a support
S and normalised again: log p_S(t) = z_t − log Σ_{s ∈ S} exp z_s, z being the logits over the
temperature. The engine tells S, and the trainer, a reference and a teacher that it loads compute
the same with their own logits: so p, q and all that is made of them are of one distribution. S is
what the sampler kept with its weights, and it has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch


@dataclass(frozen=True, slots=True)
class Supports:
    """The supports of N tokens, M ids in all.

    Attributes:
        ids: int64 ``[M]``, those of one token behind those of the one before.
        counts: int64 ``[N]``, how many each has; 0 stands for the whole vocabulary.
    """

    ids: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def of(cls, supports: Sequence[Sequence[int]]) -> Supports:
        """Return them from a list of ids for each token; an empty one is the whole vocabulary."""
        counts = torch.tensor([len(ids) for ids in supports], dtype=torch.long)
        return cls(torch.tensor([*chain(*supports)], dtype=torch.long), counts)

    def __len__(self) -> int:
        return len(self.counts)

    def to(self, device: torch.device) -> Supports:
        """Return a copy on a device."""
        return Supports(self.ids.to(device), self.counts.to(device))

    def lists(self) -> list[list[int]]:
        """Return a list of ids for each token."""
        return [ids.tolist() for ids in torch.split(self.ids.cpu(), self.counts.tolist())]

    def take(self, indices: torch.Tensor) -> Supports:
        """Return those of the tokens at ``indices``, int64 ``[K]``."""
        counts = self.counts[indices]
        starts = (self.counts.cumsum(0) - self.counts)[indices]
        shift = starts - (counts.cumsum(0) - counts)  # of each token's ids
        moved = torch.arange(int(counts.sum()), device=indices.device)
        return Supports(self.ids[moved + shift.repeat_interleave(counts)], counts)

    def cut(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits ``[N, V]`` with -inf outside of each row's support."""
        rows = torch.arange(len(self), device=logits.device).repeat_interleave(self.counts)
        left_out = (self.counts > 0)[:, None].repeat(1, logits.shape[-1])
        left_out[rows, self.ids] = False
        return logits.masked_fill(left_out, -torch.inf)
