"""A teacher's likeliest tokens, and the forward KL divergence from the teacher over them.

At a position, S are the k tokens likeliest to the teacher, p its probabilities and q the learner's;
all tokens outside of S count as one, with the rest of the probability:

    KL = Σ_{v ∈ S} p(v) · log(p(v) / q(v)) + p(rest) · log(p(rest) / q(rest))

That is KL(teacher ‖ learner) of GKD (Agarwal et al. 2024, arXiv:2306.13649, eq. 2, forward KL),
after both distributions were mapped onto k + 1 outcomes. So it is at least 0, at most the KL over
the whole vocabulary (the data-processing inequality), equal to it for k = V − 1, and 0 only where
the two agree on S. Without the rest, the least would be at q = p / Σ_S p: a policy that is too sure
(TRL's ``loss_add_tail`` adds the rest likewise).

Its gradient by the logits is q − t, over the temperature: t is p in S, and outside of it p(rest),
shared out as the learner itself does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vf.trainer.settings.config import TrainerArgs

TINY = torch.finfo(torch.float32).tiny


def likeliest_asked(args: TrainerArgs) -> int:
    """Return how many likeliest tokens a teacher is asked for; 0 where the loss reads none."""
    return args.teacher_top_k if args.teacher_loss == "forward_kl" else 0


@dataclass(frozen=True, slots=True, eq=False)
class Likeliest:
    """The k tokens that are likeliest to a teacher at N predictions.

    Attributes:
        ids: int64 ``[N, k]``, all of a row different.
        logprobs: float32 ``[N, k]``, in nats.
    """

    ids: torch.Tensor
    logprobs: torch.Tensor

    @classmethod
    def of(cls, logprobs: torch.Tensor, k: int) -> Likeliest:
        """Return them from the log-probabilities of the whole vocabulary, ``[N, V]``."""
        top = logprobs.topk(min(k, logprobs.shape[-1]), dim=-1)
        return cls(top.indices, top.values)

    @classmethod
    def joined(cls, parts: Sequence[Likeliest]) -> Likeliest:
        """Return those of several runs of predictions as one."""
        ids, logprobs = [part.ids for part in parts], [part.logprobs for part in parts]
        return cls(torch.cat(ids), torch.cat(logprobs))

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Likeliest:
        """Return a copy on a device."""
        return Likeliest(self.ids.to(device), self.logprobs.to(device))

    def take(self, indices: torch.Tensor | slice) -> Likeliest:
        """Return those of the predictions at ``indices``, int64 ``[K]`` or a slice."""
        return Likeliest(self.ids[indices], self.logprobs[indices])

    def split(self, counts: list[int]) -> list[Likeliest]:
        """Return them in runs of the given numbers of predictions."""
        ids, logprobs = torch.split(self.ids, counts), torch.split(self.logprobs, counts)
        return [Likeliest(*part) for part in zip(ids, logprobs, strict=True)]

    def rows(self) -> list[bytes]:
        """Return the bytes of each prediction's tokens and log-probabilities, N of them."""
        ids, logprobs = self.ids.cpu().numpy(), self.logprobs.float().cpu().numpy()
        return [one.tobytes() + other.tobytes() for one, other in zip(ids, logprobs, strict=True)]

    def by_row(self, rows: torch.Tensor, count: int) -> Likeliest:
        """Return those of ``count`` rows, from those of the tokens that the rows predict.

        Samples share a row only where the teacher's distribution there is the same, see
        :func:`~vf.trainer.learning.batches.packing.attached`: that of the first token counts. A
        row that predicts none has any.

        Args:
            rows: int64 ``[N]``, which row predicts each token; there is a token.
            count: The number of rows.
        """
        order = torch.argsort(rows, stable=True)
        every = torch.arange(count, device=rows.device)
        first = torch.searchsorted(rows[order], every).clamp(max=len(rows) - 1)
        return self.take(order[first])

    def rest(self, vocabulary: int) -> torch.Tensor:
        """Return the teacher's probability of all other tokens, float32 ``[N]``."""
        rest = (1.0 - self.logprobs.exp().sum(-1)).clamp(min=0.0)
        return rest if self.ids.shape[-1] < vocabulary else torch.zeros_like(rest)

    def target(self, q: torch.Tensor) -> torch.Tensor:
        """Return t, what a learner is drawn to.

        Args:
            q: The learner's probabilities, ``[N, V]``.
        """
        t = q.scatter(1, self.ids, 0.0)
        t.mul_((self.rest(q.shape[-1]) / t.sum(-1).clamp(min=TINY))[:, None])
        return t.scatter_(1, self.ids, self.logprobs.exp().to(q.dtype))

    def kl(self, logq: torch.Tensor) -> torch.Tensor:
        """Return the divergence ``[N]`` in nats, without a gradient.

        Args:
            logq: The learner's log-probabilities, ``[N, V]``.
        """
        p, rest = self.logprobs.exp(), self.rest(logq.shape[-1])
        inside = (p * (self.logprobs - logq.gather(1, self.ids))).sum(-1)
        # Summed, and not what is left of 1, which rounding would dominate.
        outside = logq.exp().scatter_(1, self.ids, 0.0).sum(-1).clamp(min=TINY)
        return inside + torch.xlogy(rest, rest) - rest * outside.log()


class ForwardKl(torch.autograd.Function):
    """:meth:`Likeliest.kl`, with its gradient by the log-probabilities, which is −t."""

    @staticmethod
    def forward(
        ctx: Any, logq: torch.Tensor, ids: torch.Tensor, logprobs: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(logq, ids, logprobs)
        return Likeliest(ids, logprobs).kl(logq)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logq, *held = ctx.saved_tensors
        t = Likeliest(*held).target(logq.exp())
        return t.mul_(-grads[0][:, None]), None, None
