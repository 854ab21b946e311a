"""From scored traces to tensors: groups, samples, micro-batches under a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from vf.traces.task import Task
from vf.traces.trace import Branch, Trace
from vf.trainer.advantages import group_advantages, is_uniform


@dataclass(slots=True)
class Group:
    """The rollouts of one task in one step.

    Attributes:
        task: The problem.
        traces: The scored rollouts; advantages are relative to these.
        unscored: Rollouts that the rubric left without a reward; nothing is learned from them.
        failed: Rollouts that an infrastructure error left without a reward.
    """

    task: Task
    traces: list[Trace] = field(default_factory=list)
    unscored: list[Trace] = field(default_factory=list)
    failed: list[Trace] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        """The rewards of the scored rollouts."""
        return [trace.reward for trace in self.traces if trace.reward is not None]

    @property
    def uniform(self) -> bool:
        """Whether the group teaches nothing because its rewards have no spread."""
        return len(self.rewards) < 2 or is_uniform(self.rewards)


@dataclass(frozen=True, slots=True)
class Sample:
    """One branch, ready to be trained on; the branch's lists have one length T."""

    branch: Branch
    advantage: float

    def __len__(self) -> int:
        return len(self.branch)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples side by side, padded on the right. B rows, L columns.

    Attributes:
        input_ids: int64 ``[B, L]``.
        attention_mask: int64 ``[B, L]``, 1 for real tokens.
        loss_mask: bool ``[B, L]``, True for sampled tokens, which alone carry loss.
        sampler_logprobs: float32 ``[B, L]``, the engine's; 0 where there is no loss.
        advantages: float32 ``[B, L]``.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    loss_mask: torch.Tensor
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy on a device."""
        return MicroBatch(
            self.input_ids.to(device),
            self.attention_mask.to(device),
            self.loss_mask.to(device),
            self.sampler_logprobs.to(device),
            self.advantages.to(device),
        )


def build_samples(
    groups: Sequence[Group], advantage: Literal["mean", "mean_std"] = "mean"
) -> list[list[Sample]]:
    """Return the samples of each group that has something to teach."""
    batches: list[list[Sample]] = []
    for group in groups:
        if group.uniform:
            continue
        values = group_advantages(group.rewards, advantage)
        batches.append(
            [
                Sample(branch, value)
                for trace, value in zip(group.traces, values, strict=True)
                for branch in trace.branches
                if any(branch.loss_mask)
            ]
        )
    return batches


def trained_tokens(samples: Sequence[Sample]) -> int:
    """Return how many tokens carry loss."""
    return sum(sum(sample.branch.loss_mask) for sample in samples)


def micro_batches(
    samples: Sequence[Sample], max_tokens: int, max_rows: int | None = None, pad_id: int = 0
) -> list[MicroBatch]:
    """Split samples into micro-batches of at most ``max_tokens`` tokens, padding included.

    Samples are sorted by length, so that little of a row is padding.

    Args:
        samples: What to train on.
        max_tokens: The budget; a longer sample gets a micro-batch of its own.
        max_rows: Most samples in one micro-batch.
        pad_id: Fills the rows; never attended to and never trained.
    """
    batches: list[list[Sample]] = []
    for sample in sorted(samples, key=len, reverse=True):
        last = batches[-1] if batches else []
        fits = last and (len(last) + 1) * len(last[0]) <= max_tokens
        if fits and (max_rows is None or len(last) < max_rows):
            last.append(sample)
        else:
            batches.append([sample])
    return [_collate(batch, pad_id) for batch in batches]


def _collate(samples: Sequence[Sample], pad_id: int) -> MicroBatch:
    shape = (len(samples), max(len(sample) for sample in samples))
    batch = MicroBatch(
        input_ids=torch.full(shape, pad_id, dtype=torch.long),
        attention_mask=torch.zeros(shape, dtype=torch.long),
        loss_mask=torch.zeros(shape, dtype=torch.bool),
        sampler_logprobs=torch.zeros(shape),
        advantages=torch.zeros(shape),
    )
    for row, sample in enumerate(samples):
        branch, length = sample.branch, len(sample)
        batch.input_ids[row, :length] = torch.tensor(branch.token_ids)
        batch.attention_mask[row, :length] = 1
        batch.loss_mask[row, :length] = torch.tensor(branch.loss_mask, dtype=torch.bool)
        batch.sampler_logprobs[row, :length] = torch.tensor(branch.logprobs)
        batch.advantages[row, :length] = sample.advantage
    # The first token of a sequence has nothing before it to be predicted from.
    batch.loss_mask[:, 0] = False
    return batch
