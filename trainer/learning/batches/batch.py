"""From scored traces to tensors: groups, samples, micro-batches under a token budget."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, compress
from typing import Self

import torch

from vf.traces.images import Image
from vf.traces.trace import Branch, Trace
from vf.trainer.learning.advantages.group_advantages import AdvantageFn, group_advantages
from vf.trainer.learning.advantages.turn_credit import (
    overlong_costs,
    returns,
    turn_advantages,
    turn_rewards,
    was_cut,
)
from vf.trainer.learning.attention.prefix_tree import PrefixTree
from vf.trainer.learning.batches.expert_routes import expert_rows
from vf.trainer.learning.batches.observations import observed
from vf.trainer.learning.batches.sampling_support import Supports
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.loss_args import AdvantageKind


@dataclass(frozen=True, slots=True)
class Sample:
    """One branch, ready to be trained on; the branch's lists have one length T.

    Attributes:
        branch: The tokens.
        advantage: A of all its tokens.
        turn_advantages: If not empty, A by the turn of a token, instead.
        rollout: What the other branches of its rollout have too; None for a rollout of one branch.
        weight: Factor of each trained token's loss; see
            :func:`~vf.trainer.learning.batches.normalisation.weighted`.
        old_logprobs: If not empty, the trainer's log-probability of each token before the batch's
            first optimizer step; 0 for those that are not trained.
        teacher_logprobs: If not empty, the teacher's log-probability of each token; 0 likewise.
        temperature: That it was sampled at, which its log-probabilities are of; None for that of
            the settings.
        mark: A number by which what the loss is computed from is kept for it; -1 for none.
        observation_weight: Factor of the loss of each token that was observed; 0 for none.
        likeliest: The teacher's likeliest tokens at each token that carries loss, in order; None
            unless the loss is of them.
    """

    branch: Branch
    advantage: float
    turn_advantages: tuple[float, ...] = ()
    rollout: str | None = None
    weight: float = 1.0
    old_logprobs: tuple[float, ...] = ()
    teacher_logprobs: tuple[float, ...] = ()
    temperature: float | None = None
    mark: int = -1
    observation_weight: float = 0.0
    likeliest: Likeliest | None = None

    @classmethod
    def of(
        cls, prompt_ids: list[int], token_ids: Sequence[int], images: Sequence[Image] = ()
    ) -> Self:
        """Return tokens after a prompt, without an advantage.

        Args:
            prompt_ids: The prompt.
            token_ids: The tokens after it.
            images: The prompt's images, with their places in it.
        """
        branch, count = Branch(), len(token_ids)
        branch.add_context(prompt_ids, 0, images)
        branch.add_sampled([*token_ids], [0.0] * count, [0] * count, 0)
        return cls(branch, 0.0)

    def __len__(self) -> int:
        return len(self.branch)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples side by side, padded on the right. B rows, L columns.

    The loss is computed on these rows. The model runs on them too, or on the packed tokens of
    their prefix tree.

    Attributes:
        input_ids: int64 ``[B, L]``.
        attention_mask: int64 ``[B, L]``, 1 for real tokens.
        loss_mask: bool ``[B, L]``, True for sampled tokens, which alone carry loss.
        sampler_logprobs: float32 ``[B, L]``, the engine's; 0 where there is no loss.
        advantages: float32 ``[B, L]``.
        weights: float32 ``[B, 1]``, factors of a sequence's token losses.
        tree: The same tokens, packed; None if the model runs on the rows.
        old_logprobs: float32 ``[B, L]``, the trainer's before the batch's first optimizer step; 0
            where there is no loss. None if that is this one, or if nothing asks for them.
        teacher_logprobs: float32 ``[B, L]``, the teacher's; 0 where there is no loss. None without
            a teacher.
        temperature: All samples'; None for that of the settings.
        marks: int64 ``[B, 1]``, those of the samples; None if none has one.
        experts: int16 ``[B, L, W]``, the numbers of the experts that the engine sent a token to;
            -1 where they are not known. None if no sample has any.
        observation_weights: float32 ``[B, L]``, factors of observed tokens' losses, 0 for others;
            None if no observation carries loss.
        supports: The supports of the trained tokens in row-major order, if filters left some
            out of any.
        likeliest: The teacher's at the trained tokens, in row-major order; None if the loss is not
            of them.
        images: What its only row sees, with their places in it; empty for text.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    loss_mask: torch.Tensor
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    tree: PrefixTree | None = None
    old_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    temperature: float | None = None
    marks: torch.Tensor | None = None
    experts: torch.Tensor | None = None
    observation_weights: torch.Tensor | None = None
    supports: Supports | None = None
    likeliest: Likeliest | None = None
    images: tuple[Image, ...] = ()

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy on a device."""
        held = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        moved = {name: value.to(device) for name, value in held.items() if hasattr(value, "to")}
        return replace(self, **moved)

    @property
    def computed(self) -> int:
        """Tokens that the model computes: padding counts, and a shared prefix counts once."""
        return self.input_ids.numel() if self.tree is None else len(self.tree)


def build_samples(
    groups: Sequence[Group],
    args: TrainerArgs,
    advantages: AdvantageFn | None = None,
    *,
    temperature: float | None = None,
) -> list[list[Sample]]:
    """Return the samples of each group that has something to teach.

    A group whose rewards are all equal is left out, however its turns or lengths differ. With a
    function of one's own it is its advantages that count: a group is left out if all are 0. A
    teacher, or an entropy bonus, counts in every group. With several agents, the rewards of a role
    are compared with those of the same role (:func:`role_advantages`).

    Args:
        groups: The step's rollouts.
        args: ``[trainer.args]``: advantage, credit, overlong shaping and ``mask_truncated``.
        advantages: In place of ``args.advantage``.
        temperature: The temperature of their sampling; None for that of the learner's settings.
    """
    batches: list[list[Sample]] = []
    for group in groups:
        if not group.traces or (advantages is None and not group_teaches(group, args)):
            continue
        by_turn = _turn_advantages(group, args, advantages or args.advantage)
        by_role = role_advantages(group, advantages or args.advantage)
        if args.teacher_model is not None:
            coef = args.teacher_reward_coef
            by_turn = [tuple(coef * a for a in turns) for turns in by_turn]
            by_role = [{name: coef * a for name, a in roles.items()} for roles in by_role]
        taught = any(map(any, by_turn)) or any(any(roles.values()) for roles in by_role)
        if advantages is not None and not taught and not args.entropy_coef:
            continue
        batch = [
            Sample(
                branch,
                roles.get(role, values[0]),
                values if args.credit == "turn" else (),
                trace.id,
                temperature=temperature,
            )
            for trace, values, roles in zip(group.traces, by_turn, by_role, strict=True)
            if not (args.mask_truncated and was_cut(trace))
            for role, branch in zip(trace.branch_roles, trace.branches, strict=True)
            if any(branch.loss_mask)
        ]
        if batch:
            batches.append(batch)
    return batches


def group_teaches(group: Group, args: TrainerArgs) -> bool:
    """Return whether a group has anything to teach.

    Its rewards differ; or there is a teacher, or an entropy bonus, which is needed most where all
    rollouts of a task have become alike.
    """
    always = args.teacher_model is not None or args.entropy_coef > 0
    return not group.uniform or (always and bool(group.traces))


def _turn_advantages(
    group: Group, args: TrainerArgs, kind: AdvantageKind | AdvantageFn
) -> list[tuple[float, ...]]:
    """Return the advantages of a group's rollouts by turn; one for all with trace credit."""
    if args.credit == "trace":
        totals = [(trace.reward or 0.0) - sum(overlong(trace, args)) for trace in group.traces]
        return [(value,) for value in group_advantages(totals, kind)]
    discounted = []
    for trace in group.traces:
        rewards = turn_rewards(trace)
        for turn, cost in enumerate(overlong(trace, args)):
            rewards[turn] -= cost
        discounted.append(returns(rewards, args.credit_discount))
    return [tuple(values) for values in turn_advantages(discounted, kind)]


def role_advantages(
    group: Group, kind: AdvantageKind | AdvantageFn = "mean"
) -> list[dict[str, float]]:
    """Return the advantage of each trained role in each rollout of a group.

    A role's reward is compared with those of the same role in the group's other rollouts: the
    baseline is conditioned on the role, as in SPIRAL's role-conditioned advantage estimation
    (arXiv:2506.24119), whose baseline is a running mean instead.

    Args:
        group: The rollouts. Those of one task train the same roles.
        kind: The comparison; see
            :func:`~vf.trainer.learning.advantages.group_advantages.group_advantages`.

    Returns:
        For each rollout the advantages by role; empty where there are no roles.
    """
    by_role: list[dict[str, float]] = [{} for _ in group.traces]
    for name, rewards in group.role_rewards.items():
        for roles, value in zip(by_role, group_advantages(rewards, kind), strict=True):
            roles[name] = value
    return by_role


def overlong(trace: Trace, args: TrainerArgs) -> list[float]:
    """Return what each turn costs for its length; empty unless ``overlong_buffer`` is set."""
    if args.overlong_buffer is None:
        return []
    return overlong_costs(trace, args.max_tokens, args.overlong_buffer, args.overlong_penalty)


def sequence_tokens(sample: Sample) -> int:
    """Return how many tokens of a sample carry loss."""
    return sum(sample.branch.loss_mask[1:])  # nothing predicts the first


def observing(sample: Sample) -> bool:
    """Return whether what a sample observed carries loss."""
    return sample.observation_weight > 0.0


def micro_batches(
    samples: Sequence[Sample], max_tokens: int, max_rows: int | None = None, pad_id: int = 0
) -> list[MicroBatch]:
    """Split samples into micro-batches of at most ``max_tokens`` tokens, padding included.

    Samples are sorted by length to keep padding small.

    Args:
        samples: The samples to train on.
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
    return [collate(batch, pad_id) for batch in batches]


def by_temperature(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return samples in lists of one temperature each: those of a micro-batch have the same."""
    by_value: dict[float | None, list[Sample]] = {}
    for sample in samples:
        by_value.setdefault(sample.temperature, []).append(sample)
    return [*by_value.values()]


def collate(samples: Sequence[Sample], pad_id: int = 0) -> MicroBatch:
    """Return samples as the rows of one micro-batch.

    Raises:
        ValueError: If the samples have different temperatures, or there are several, and images.
    """
    if len(samples) > 1 and any(sample.branch.images for sample in samples):
        raise ValueError("a sample with images is a micro-batch of its own")
    [temperature] = {sample.temperature for sample in samples}
    shape = (len(samples), max(len(sample) for sample in samples))
    batch = MicroBatch(
        input_ids=torch.full(shape, pad_id, dtype=torch.long),
        attention_mask=torch.zeros(shape, dtype=torch.long),
        loss_mask=torch.zeros(shape, dtype=torch.bool),
        sampler_logprobs=torch.zeros(shape),
        advantages=torch.zeros(shape),
        weights=torch.tensor([[sample.weight] for sample in samples]),
        old_logprobs=torch.zeros(shape) if any(sample.old_logprobs for sample in samples) else None,
        teacher_logprobs=(
            torch.zeros(shape) if any(sample.teacher_logprobs for sample in samples) else None
        ),
        temperature=temperature,
        marks=torch.tensor([[sample.mark] for sample in samples])
        if any(sample.mark >= 0 for sample in samples)
        else None,
        experts=expert_rows([sample.branch for sample in samples]),
        observation_weights=torch.zeros(shape) if any(map(observing, samples)) else None,
        images=tuple(chain(*(sample.branch.images for sample in samples))),
    )
    for row, sample in enumerate(samples):
        branch, length = sample.branch, len(sample)
        batch.input_ids[row, :length] = _integers(branch.token_ids)
        batch.attention_mask[row, :length] = 1
        batch.loss_mask[row, :length] = _integers(branch.loss_mask)
        batch.sampler_logprobs[row, :length] = _floats(branch.logprobs)
        if turns := sample.turn_advantages:
            values = [turns[min(turn, len(turns) - 1)] for turn in branch.turn_index]
            batch.advantages[row, :length] = _floats(values)
        else:
            batch.advantages[row, :length] = sample.advantage
        if batch.old_logprobs is not None:
            batch.old_logprobs[row, :length] = _floats(sample.old_logprobs)
        if batch.teacher_logprobs is not None:
            batch.teacher_logprobs[row, :length] = _floats(sample.teacher_logprobs)
        if batch.observation_weights is not None:
            which = torch.from_numpy(observed(branch.loss_mask))
            batch.observation_weights[row, :length] = sample.observation_weight * which
    # The first token of a sequence has nothing before it to be predicted from.
    batch.loss_mask[:, 0] = False
    taught = [sample.likeliest for sample in samples if sample.likeliest is not None]
    if taught:
        batch = replace(batch, likeliest=Likeliest.joined(taught))
    if not any(any(sample.branch.supports) for sample in samples):
        return batch
    return replace(batch, supports=Supports.of([*chain(*map(_supports, samples))]))


def _supports(sample: Sample) -> list[list[int]]:
    """Return those of a sample's trained tokens."""
    mask, supports = sample.branch.loss_mask[1:], sample.branch.supports[1:]
    return [*compress(supports, mask)] if supports else [[]] * sum(map(bool, mask))


# An array takes an eighth of the time in which `torch.tensor` reads a list.
def _integers(values: Sequence[int]) -> torch.Tensor:
    return torch.frombuffer(array("q", values), dtype=torch.int64)


def _floats(values: Sequence[float]) -> torch.Tensor:
    return torch.frombuffer(array("f", values), dtype=torch.float32)
