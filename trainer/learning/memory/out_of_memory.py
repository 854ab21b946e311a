"""What a trainer process does when the memory for a micro-batch runs out.

The optimizer step begins again, once, with micro-batches of half the tokens. Nothing has to be kept
for that while all goes well: a backward pass that fails has added a part of its gradient, so the
whole gradient is thrown away, and the micro-batches of the step, which are few integers, are cut
again. The gradient is the same sum. Each process does so for itself: none waits for another before
the sum of their gradients.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import torch

from vf.runtime.errors import TrainingError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import (
    MicroBatch,
    Sample,
    by_temperature,
    collate,
    micro_batches,
)
from vf.trainer.learning.batches.expert_routes import experts_of_row
from vf.trainer.learning.batches.packing import fills, pack
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.learning.losses.custom_loss import Loss

log = logging.getLogger(__name__)

_ON_CPU = "can't allocate memory"  # PyTorch's allocator raises a bare RuntimeError there
KNOBS = (
    "lower trainer.args.micro_batch_tokens or max_seq_len, set "
    "gradient_checkpointing = true, or keep less beside it: bf16 = true, use_lora = true, "
    "load_in_4bit = true or another optim, and fewer requests or a smaller share of the device for "
    "the engine"
)


@dataclass(slots=True)
class Work:
    """One micro-batch of an optimizer step.

    Attributes:
        batch: The batch.
        reference: log p_ref of its trained tokens, float32 ``[N]``, once it is known; or log p,
            where the policy itself is asked before its first optimizer step.
        likeliest: A teacher's likeliest tokens there, once they are known.
        mean_gap: mean(log q − log p_ref) over the whole step, in nats.
        loss: By its name, or as a function; None for that of the settings.
        token_weight: What each of its tokens weighs in the loss of routers.
    """

    batch: MicroBatch
    reference: torch.Tensor | None = None
    mean_gap: float = 0.0
    loss: Loss = None
    token_weight: float = 0.0
    likeliest: Likeliest | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """Memory ran out.

    Attributes:
        message: What the allocator said, in one line.
        rows: Samples in the micro-batch that was too much.
        tokens: Tokens that the model computes for it.
    """

    message: str
    rows: int
    tokens: int


class Budget:
    """How many tokens a micro-batch of this process may have.

    Args:
        tokens: To begin with.
        rows: Most samples in one.

    Attributes:
        tokens: Now; less than in the beginning once memory ran out.
        retries: How often it did in the optimizer step under way.
        apart: Whether packed tokens that sequences share count once for each of them.
    """

    def __init__(self, tokens: int, rows: int | None = None) -> None:
        self.tokens = tokens
        self.retries = 0
        self.apart = False
        self._rows = rows

    def pack(self, samples: Sequence[Sample], *, packed: bool, share: bool) -> list[MicroBatch]:
        """Return samples as micro-batches under the budget.

        Args:
            samples: The samples to train on; those that were a micro-batch keep their order.
            packed: Whether the model runs on packed tokens rather than padded rows.
            share: Whether packed samples that begin alike share their beginning.
        """
        batches: list[MicroBatch] = []
        alone = [sample for sample in samples if sample.branch.images]
        batches += [collate([sample]) for sample in alone]
        for part in by_temperature([sample for sample in samples if not sample.branch.images]):
            batches += (
                pack(part, self.tokens, self._rows, share=share, apart=self.apart)
                if packed
                else micro_batches(part, self.tokens, self._rows)
            )
        return batches

    def filled(self, samples: Sequence[Sample], ranks: int, *, share: bool) -> bool:
        """Return whether samples are enough for a full micro-batch on every rank."""
        return fills(samples, ranks, self.tokens, self._rows, share=share)

    def cut(self, work: Iterable[Work], *, share: bool) -> list[Work]:
        """Return the same work, cut where a micro-batch is over the budget."""
        done: list[Work] = []
        for piece in work:
            batch = piece.batch
            if len(batch.input_ids) == 1 or self._size(batch) <= self.tokens:
                done.append(piece)
                continue
            parts = self.pack(unpack(batch), packed=batch.tree is not None, share=share)
            counts = [int(part.loss_mask.sum()) for part in parts]
            references: Sequence[torch.Tensor | None] = [None] * len(parts)
            likeliest: Sequence[Likeliest | None] = [None] * len(parts)
            if piece.reference is not None:
                references = torch.split(piece.reference, counts)
            if piece.likeliest is not None:
                likeliest = piece.likeliest.split(counts)
            done += [
                replace(piece, batch=part, reference=reference, likeliest=top)
                for part, reference, top in zip(parts, references, likeliest, strict=True)
            ]
        return done

    def halve(self, work: Sequence[Work], shortage: Shortage, *, share: bool) -> list[Work]:
        """Halve the budget, for the rest of the run, and return the work cut to it.

        Raises:
            TrainingError: If it was halved in this step already, or one sample alone is too much.
        """
        halves = (
            f"out of memory in a micro-batch of {shortage.tokens:,} tokens in {shortage.rows} "
            f"sequence{'s' * (shortage.rows > 1)}"
        )
        if self.retries or shortage.rows == 1:
            why = "after the budget was halved" if self.retries else "which cannot be cut"
            raise TrainingError(f"{halves}, {why}; {KNOBS}. The allocator: {shortage.message}")
        largest = max(self._size(piece.batch) for piece in work)
        self.retries += 1
        before, self.tokens = self.tokens, max(1, min(self.tokens, largest) // 2)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        log.warning(
            "%s: the step begins again, and micro-batches have at most %d tokens from here on, not "
            "%d. The allocator: %s",
            halves,
            self.tokens,
            before,
            shortage.message,
        )
        return self.cut(work, share=share)

    def _size(self, batch: MicroBatch) -> int:
        """Return how much of the budget a micro-batch takes."""
        return int(batch.attention_mask.sum()) if self.apart else batch.computed


def attempt(work: Iterable[Work], do: Callable[[Work], None]) -> Shortage | None:
    """Do something with one micro-batch after the other, until memory runs out.

    Returns:
        None if it did not. When this returns, the error is gone, and with it the tensors that its
        frames held.
    """
    for piece in work:
        try:
            do(piece)
        except Exception as error:
            reason = _shortage(error)
            if reason is None:
                raise
            return Shortage(reason, len(piece.batch.input_ids), piece.batch.computed)
    return None


def _shortage(error: BaseException | None) -> str | None:
    """Return what the allocator said, if an error or its cause is one of memory."""
    while error is not None:
        on_cpu = isinstance(error, RuntimeError) and _ON_CPU in str(error)
        if on_cpu or isinstance(error, torch.OutOfMemoryError | MemoryError):
            return (str(error) or type(error).__name__).splitlines()[0]
        error = error.__cause__
    return None


def unpack(batch: MicroBatch) -> list[Sample]:
    """Return the rows of a micro-batch, on the CPU, as samples that would make it again."""
    samples, at = [], 0
    supports = repeat([]) if batch.supports is None else iter(batch.supports.lists())
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        mask = [int(trained) for trained in batch.loss_mask[row, :length].tolist()]
        own = [next(supports) if trained else [] for trained in mask]
        branch = Branch(
            batch.input_ids[row, :length].tolist(),
            mask,
            batch.sampler_logprobs[row, :length].tolist(),
            list(range(length)),
            [0] * length,
            [] if batch.experts is None else experts_of_row(batch.experts[row, :length]),
            own if batch.supports is not None else [],
        )
        advantages = tuple(batch.advantages[row, :length].tolist())
        old, teacher = batch.old_logprobs, batch.teacher_logprobs
        observations, trained = batch.observation_weights, sum(mask)
        taught = None if batch.likeliest is None else batch.likeliest.take(slice(at, at + trained))
        at += trained
        samples.append(
            Sample(
                branch,
                0.0,
                advantages,
                weight=float(batch.weights[row]),
                old_logprobs=() if old is None else tuple(old[row, :length].tolist()),
                teacher_logprobs=() if teacher is None else tuple(teacher[row, :length].tolist()),
                temperature=batch.temperature,
                mark=-1 if batch.marks is None else int(batch.marks[row]),
                observation_weight=0.0 if observations is None else float(observations[row].max()),
                likeliest=None if taught is None else taught.to("cpu"),
            )
        )
    return samples
