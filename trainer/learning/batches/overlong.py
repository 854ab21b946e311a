"""What happens to samples that are longer than ``max_seq_len``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields, replace

from vf.runtime.errors import TrainingError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample, sequence_tokens
from vf.trainer.settings.config import TrainerArgs

log = logging.getLogger(__name__)


def longest_taught(args: TrainerArgs) -> int:
    """Return the most tokens of a sequence that a teacher reads, whatever more it sees."""
    return args.max_seq_len + (args.max_prompt_len if args.teacher_privileged else 0)


def fit(
    samples: Sequence[Sample], args: TrainerArgs, limit: int | None = None
) -> tuple[list[Sample], int]:
    """Drop, cut or refuse samples over a limit, as ``long_sequences`` says.

    A sample that is cut where it has not sampled anything yet is dropped.

    Args:
        samples: The samples.
        args: ``[trainer.args]``.
        limit: In place of ``max_seq_len``.

    Returns:
        The samples to train on, and how many were too long.

    Raises:
        TrainingError: If a sample is too long and is to be refused.
    """
    limit = args.max_seq_len if limit is None else limit
    long = [len(sample) for sample in samples if len(sample) > limit]
    if not long:
        return list(samples), 0
    if args.long_sequences == "refuse":
        raise TrainingError(
            f"{len(long)} of {len(samples)} sequences are longer than max_seq_len = {limit}, the "
            f"longest {max(long)} tokens, and long_sequences = 'refuse'; raise max_seq_len, or "
            "drop or truncate them"
        )
    done = "cut" if args.long_sequences == "truncate" else "not trained on"
    log.warning(
        "%d of %d sequences are longer than max_seq_len = %d and are %s",
        len(long),
        len(samples),
        limit,
        done,
    )
    kept = []
    for sample in samples:
        if len(sample) <= limit:
            kept.append(sample)
        elif args.long_sequences == "truncate":
            branch = sample.branch
            cut = {entry.name: getattr(branch, entry.name)[:limit] for entry in fields(branch)}
            short = replace(
                sample,
                branch=Branch(**cut),
                old_logprobs=sample.old_logprobs[:limit],
                teacher_logprobs=sample.teacher_logprobs[:limit],
            )
            if short.likeliest is not None:
                kept_tokens = slice(sequence_tokens(short))
                short = replace(short, likeliest=short.likeliest.take(kept_tokens))
            if sequence_tokens(short):
                kept.append(short)
    return kept, len(long)
