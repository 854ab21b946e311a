"""Log-probabilities that samples bring along: the trainer's from before a batch, and a teacher's.

They are computed on micro-batches, which reorder samples and are shared out over ranks, and find
their way back by the tokens that they are of: equal tokens have equal log-probabilities at equal
temperatures, over equal supports, with equal experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice
from typing import Any, Literal

import torch

from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.expert_routes import experts_of_row
from vf.trainer.learning.batches.overlong import fit, longest_taught
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.learning.memory.out_of_memory import Work
from vf.trainer.settings.config import TrainerArgs

# Token ids, which of them are trained (nothing predicts the first), the temperature, the supports
# of those that are trained, if any has one, the experts of all that have any, and the images.
Supported = tuple[tuple[int, ...], ...]
Tokens = tuple[
    tuple[int, ...],
    tuple[bool, ...],
    float | None,
    Supported,
    tuple[bytes, ...],
    tuple[str, ...],
]
# Of each of them its log-probability, and of those that are trained a teacher's likeliest tokens.
LogprobsByTokens = dict[Tokens, tuple[tuple[float, ...], Likeliest | None]]
LogprobField = Literal["old_logprobs", "teacher_logprobs"]


def by_tokens(work: Iterable[Work]) -> LogprobsByTokens:
    """Return what a pass without gradient found for each row; 0 for tokens that are not trained."""
    by_token_ids: LogprobsByTokens = {}
    for item in work:
        batch, mask = item.batch, item.batch.loss_mask
        if item.reference is None:
            continue
        supports = iter([] if batch.supports is None else map(tuple, batch.supports.lists()))
        spread = torch.zeros(mask.shape).masked_scatter(mask, item.reference.float().cpu())
        counts = mask.sum(1).tolist()
        top = (
            [None] * len(mask) if item.likeliest is None else item.likeliest.to("cpu").split(counts)
        )
        for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
            ids, trained = batch.input_ids[row, :length], mask[row, 1:length]
            own = tuple(islice(supports, int(trained.sum())))
            key = tuple(ids.tolist()), tuple(trained.tolist())
            experts = () if batch.experts is None else experts_of_row(batch.experts[row, :length])
            images = tuple(image.name for image in batch.images)
            tokens = *key, batch.temperature, own if any(own) else (), tuple(experts), images
            by_token_ids[tokens] = tuple(spread[row, :length].tolist()), top[row]
    return by_token_ids


def samples_for_pass(
    samples: Sequence[Sample], args: TrainerArgs, which: LogprobField
) -> list[Sample]:
    """Return what a pass is to be made over: each sample once, and none that is too long."""
    once = list({id(sample): sample for sample in samples}.values())
    return fit(once, args, longest_taught(args) if which == "teacher_logprobs" else None)[0]


def attach(
    samples: Sequence[Sample],
    logprobs_by_tokens: Mapping[Tokens, tuple[tuple[float, ...], Likeliest | None]],
    which: LogprobField = "old_logprobs",
) -> list[Sample]:
    """Return samples with their log-probabilities; those of none stay as they are.

    A sample that will be cut to its first tokens has those of these.
    """
    limit = max((len(ids) for ids, *_ in logprobs_by_tokens), default=0)
    done = []
    for sample in samples:
        ids, mask = sample.branch.token_ids[:limit], sample.branch.loss_mask[1:limit]
        own = tuple(map(tuple, compress(sample.branch.supports[1:limit], mask)))
        key = tuple(ids), tuple(map(bool, mask))
        experts = tuple(sample.branch.experts[:limit])
        images = tuple(image.name for image in sample.branch.images)
        tokens = *key, sample.temperature, own if any(own) else (), experts, images
        logprobs, likeliest = logprobs_by_tokens.get(tokens, (getattr(sample, which), None))
        named: dict[str, Any] = {which: logprobs}
        if likeliest is not None:
            named["likeliest"] = likeliest
        done.append(replace(sample, **named))
    return done
