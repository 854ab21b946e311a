"""What each token of an optimizer step weighs, so that the step is one sum however it is split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from vf.trainer.learning.batches.batch import Sample, sequence_tokens
from vf.trainer.learning.batches.observations import observed
from vf.trainer.settings.config import TrainerArgs


def rollout_tokens(samples: Sequence[Sample]) -> tuple[list[str | int], Counter[str | int]]:
    """Return a key of each sample's rollout, and by it how many tokens carry loss in all of it."""
    keys = [
        index if sample.rollout is None else sample.rollout for index, sample in enumerate(samples)
    ]
    counts: Counter[str | int] = Counter()
    for key, sample in zip(keys, samples, strict=True):
        counts[key] += sequence_tokens(sample)
    return keys, counts


@dataclass(frozen=True, slots=True)
class Totals:
    """The size of an optimizer step, over all its samples.

    Attributes:
        tokens: Trained tokens N.
        rollouts: Rollouts R that have any.
        processed: All their tokens, however often they are shared, without padding.
        computed: Tokens that went through the model: padding counts, a shared prefix once.
        too_long: Samples over ``max_seq_len``, which were dropped or cut.
    """

    tokens: int = 0
    rollouts: int = 0
    processed: int = 0
    computed: int = 0
    too_long: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, e.name) + getattr(other, e.name) for e in fields(self)))

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Totals:
        """Count samples, which hold all branches of their rollouts."""
        _, counts = rollout_tokens(samples)
        rollouts = sum(count > 0 for count in counts.values())
        return cls(counts.total(), rollouts, sum(map(len, samples)))


def weighted(samples: Sequence[Sample], args: TrainerArgs) -> list[Sample]:
    """Return samples with the weights of their token losses, up to the factor :func:`scale`.

    The loss of an optimizer step is scale · Σ weight · token loss over all its trained tokens. A
    weight depends on its rollout alone, and the factor is known once the step's last sample is:
    the step is the same sum however its samples are split over micro-batches, passes and trainer
    processes. With N trained tokens in R rollouts that have any, n of them in all branches of this
    one, weight · scale is:

    - ``token``: 1 · 1/N (DAPO, arXiv:2503.14476, section 3.3).
    - ``sequence``: 1/n · 1/R (GRPO, arXiv:2402.03300, eq. 3).
    - ``fixed``: 1/F · 1/R, F = ``fixed_length`` (Dr. GRPO, arXiv:2503.20783, section 3.2).

    All tokens that a rollout observed, m in its branches, weigh together what its n trained ones
    do: n/m of these weights each.

    Args:
        samples: The samples, with all branches of their rollouts.
        args: ``[trainer.args]``: ``loss_normalisation``, ``fixed_length`` and
            ``observation_loss_coef``, without which observations have no weight.
    """

    def weight(count: int) -> float:
        match args.loss_normalisation:
            case "token":
                return 1.0
            case "sequence":
                return 1.0 / count if count else 0.0
            case "fixed":
                return 1.0 / (args.fixed_length or args.max_seq_len)

    keys, counts = rollout_tokens(samples)
    seen: Counter[str | int] = Counter()
    if args.observation_loss_coef:
        for key, sample in zip(keys, samples, strict=True):
            seen[key] += int(observed(sample.branch.loss_mask).sum())
    done = []
    for key, sample in zip(keys, samples, strict=True):
        own = weight(counts[key])
        observation = own * counts[key] / seen[key] if seen[key] else 0.0
        done.append(replace(sample, weight=own, observation_weight=observation))
    return done


def scale(totals: Totals, args: TrainerArgs) -> float:
    """Return the factor of an optimizer step's summed, weighted loss."""
    count = totals.tokens if args.loss_normalisation == "token" else totals.rollouts
    return 1.0 / max(count, 1)  # without tokens, the sum is 0
