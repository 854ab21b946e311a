"""What the loss is computed from, token by token, kept for a few samples of each step."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass

import torch

from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.losses.importance_sampling import Corrected
from vf.trainer.learning.losses.policy_gradient import LossArrays, TokenLosses
from vf.trainer.learning.sharding.rank_commands import Together
from vf.trainer.learning.sharding.ranks import Ranks

UNMARKED = -1


@dataclass(frozen=True, slots=True)
class Seen:
    """The arrays of one row, on the CPU; T tokens, N of them trained.

    Attributes:
        mask: bool ``[T]``.
        floats: float32 ``[4, N]``: advantages, log p, log ratios and importance weights.
        flags: bool ``[3, N]``: clipped, dropped and bounded.
        teacher: A teacher's log p, float32 ``[N]``; None without one.
    """

    mask: torch.Tensor
    floats: torch.Tensor
    flags: torch.Tensor
    teacher: torch.Tensor | None = None


class Watch:
    """Keeps the arrays of the rows that are marked, until they are taken.

    Where memory ran out and a step began again, a row's arrays are those of the second time.

    Args:
        ranks: The trainer processes. Each keeps the rows that it computes.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._seen: dict[int, Seen] = {}

    @torch.no_grad()
    def __call__(
        self,
        batch: MicroBatch,
        arrays: LossArrays,
        losses: TokenLosses,
        correction: Corrected | None,
    ) -> None:
        """Keep the marked rows of a micro-batch.

        Args:
            batch: The micro-batch, with ``marks``.
            arrays: The inputs of its loss.
            losses: The losses of its tokens.
            correction: The weights that the losses were multiplied by, if there are any.
        """
        assert batch.marks is not None
        mask = arrays.loss_mask
        none, ones = torch.zeros_like(mask), torch.ones_like(arrays.advantages)
        weights = ones if correction is None else correction.weights
        floats = torch.stack(
            [
                values.float()
                for values in (arrays.advantages, arrays.logprobs, arrays.log_ratio, weights)
            ]
        )
        bounded = none if correction is None else correction.bounded
        held = (losses.clipped, losses.dropped, bounded)
        flags = torch.stack([none if values is None else values for values in held])
        lengths = batch.attention_mask.sum(1).tolist()
        for row, mark in enumerate(batch.marks[:, 0].tolist()):
            if mark != UNMARKED:
                trained, teacher = mask[row, : lengths[row]], None
                if batch.teacher_logprobs is not None:
                    teacher = batch.teacher_logprobs[row, : lengths[row]][trained].cpu()
                self._seen[mark] = Seen(
                    trained.cpu(),
                    floats[:, row, : lengths[row]][:, trained].cpu(),
                    flags[:, row, : lengths[row]][:, trained].cpu(),
                    teacher,
                )

    def collect(self) -> dict[int, Seen]:
        """Return what all ranks have kept since the last time, by the mark of the sample.

        A sample that was trained on twice in between has what came last.

        Raises:
            TrainingError: If another trainer process is gone.
        """
        self._ranks.tell([Together("objective.watch.take", ())] * self._ranks.count)
        kept = self.take()
        self._ranks.joined()
        return kept

    def take(self) -> dict[int, Seen]:
        """Do this rank's part of :meth:`collect`; rank 0 gets what all have kept."""
        seen, self._seen = self._seen, {}
        return dict(ChainMap(*self._ranks.gathered(seen)))
