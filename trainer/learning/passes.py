"""The passes that one trainer process makes over micro-batches, and those without a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol

import torch

from vf.runtime.errors import TrainingError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import MicroBatch, Sample
from vf.trainer.learning.batches.packing import share_out
from vf.trainer.learning.memory.out_of_memory import KNOBS, Budget, Shortage, Work, attempt
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.objective import spread
from vf.trainer.learning.sharding.ranks import Ranks
from vf.trainer.settings.config import TrainerArgs


class Phase(Protocol):
    """Is called with a part of an update that begins, and the micro-batch that it is about."""

    def __call__(self, name: str, batch: MicroBatch | None) -> AbstractContextManager[None]:
        """Return a context manager that ends with the part."""
        ...


def unwatched(name: str, batch: MicroBatch | None) -> AbstractContextManager[None]:
    """Watch nothing: the usual :class:`Phase`."""
    return nullcontext()


def requested_outputs(args: TrainerArgs) -> dict[str, bool]:
    """Return what of a pass carries loss: the same on every rank, whatever its samples hold."""
    return {
        "entropy_gradient": args.entropy_coef > 0,
        "observed": args.observation_loss_coef > 0,
        "taught": args.teacher_loss == "forward_kl",
    }


class Passes:
    """Packs samples for every rank, and asks models for log-probabilities.

    Args:
        forward: The way to log-probabilities of the model that learns.
        ranks: The trainer processes.
        budget: The budget of a micro-batch.
        temperature: The sampler's, of samples that name none.
        share: Whether samples that begin alike may share their beginning.

    Attributes:
        phase: Is called with every part of an update.
    """

    def __init__(
        self, forward: Forward, ranks: Ranks, budget: Budget, temperature: float, *, share: bool
    ) -> None:
        self.forward = forward
        self.phase: Phase = unwatched
        self._ranks, self._sharding = ranks, ranks.sharding
        self._budget = budget
        self._temperature = temperature
        self._packed = forward.how != "padded"
        self._share = share and self._packed

    def share_out(
        self, samples: Sequence[Sample], loads: list[int]
    ) -> tuple[list[list[MicroBatch]], int]:
        """Return each rank's micro-batches, and the passes that all make, if they must together.

        Args:
            samples: The work.
            loads: Tokens that each rank has got so far; those of the samples are added in place.
        """
        batches = [
            self._pack(part, share=self._share)
            for part in share_out(samples, loads, share=self._share)
        ]
        return batches, max(map(len, batches)) if self._sharding.together else 0

    def filled(self, samples: Sequence[Sample]) -> bool:
        """Return whether samples are enough for a full micro-batch on every rank."""
        return self._budget.filled(samples, self._ranks.count, share=self._share)

    def cut(self, work: Iterable[Work]) -> list[Work]:
        """Return work in parts that are within the budget as it is now."""
        return self._budget.cut(work, share=self._share)

    def halve(self, work: list[Work], shortage: Shortage) -> list[Work]:
        """Return work in smaller parts, where memory ran out.

        Raises:
            TrainingError: If it ran out before, or the parameters are sharded.
        """
        if self._sharding.together:
            raise TrainingError(
                f"out of memory in a micro-batch of {shortage.tokens:,} tokens; with parameters "
                "sharded over processes a step cannot be retried: the others are still in it. "
                f"{KNOBS}. The allocator: {shortage.message}"
            )
        return self._budget.halve(work, shortage, share=self._share)

    def temperature(self, batch: MicroBatch) -> float:
        """Return the temperature that a micro-batch was sampled at."""
        return self._temperature if batch.temperature is None else batch.temperature

    def idle(self) -> MicroBatch:
        """Return the least micro-batch: layers that are spread need every rank in every round."""
        branch = Branch([0, 0], [0, 1], [0.0, 0.0], [0, 0], [0, 0])
        [batch] = self._pack([Sample(branch, 0.0)], share=False)
        return batch.to(self._ranks.accelerator.device)

    def pass_idly(self, forward: Forward, **outputs: bool) -> torch.Tensor:
        """Make a pass over the least micro-batch; return a sum of all that was computed."""
        idle = self.idle()
        predictions = forward(idle, self.temperature(idle), **outputs)
        results = (
            predictions.logprobs,
            predictions.entropy,
            predictions.observed,
            predictions.teacher_kl,
        )
        sums = [result.sum() for result in results if result is not None and result.requires_grad]
        return torch.stack(sums or [predictions.logprobs.sum()]).sum()

    def ask(self, whole: Iterable[Work], rounds: int, forward: Forward, phase: str) -> list[Work]:
        """Return work with log-probabilities of its trained tokens, of any model.

        Args:
            whole: The work; what has log-probabilities already keeps them.
            rounds: Passes that all ranks make.
            forward: The way to them.
            phase: The name of the phase, for the profile.

        Raises:
            TrainingError: If memory ran out twice.
        """

        def one(work: Work) -> None:
            if work.reference is None:
                batch = work.batch.to(self._ranks.accelerator.device)
                with self.phase(phase, batch):
                    predictions = forward(batch, self.temperature(batch))
                work.reference, work.likeliest = predictions.logprobs, predictions.likeliest

        work = self.cut(whole)
        with self._without_gradient(forward):
            while shortage := attempt(work, one):
                work = self.halve(work, shortage)
            for _ in range(rounds - len(work)):
                self.pass_idly(forward)
        return work

    def logprobs(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Return log p of each sample's trained tokens, without a gradient.

        Returns:
            One float32 ``[T]`` per sample of T tokens, on the CPU; 0 where nothing is trained.
        """
        numbered = [replace(sample, weight=float(index)) for index, sample in enumerate(samples)]
        logprobs = [torch.zeros(len(sample)) for sample in samples]
        with self._without_gradient(self.forward):
            for batch in self._pack(numbered, share=self._share):
                batch = batch.to(self._ranks.accelerator.device)
                rows = self.forward(batch, self.temperature(batch)).logprobs
                rows = spread(rows, batch.loss_mask).cpu()
                for row, index in zip(rows, batch.weights[:, 0].int().tolist(), strict=True):
                    logprobs[index].copy_(row[: len(logprobs[index])])
        return logprobs

    def _pack(self, samples: Sequence[Sample], *, share: bool) -> list[MicroBatch]:
        return self._budget.pack(samples, packed=self._packed, share=share)

    @contextmanager
    def _without_gradient(self, forward: Forward) -> Iterator[None]:
        with torch.no_grad(), forward.active():
            yield
