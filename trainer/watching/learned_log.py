"""Writes down what the loss made of a few groups of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vf.traces.learned import Learned, write_learned
from vf.trainer.run.group import Group

if TYPE_CHECKING:
    from vf.trainer.learning.batches.batch import Sample
    from vf.trainer.learning.loss_recorder import Seen


class LearnedLog:
    """The groups of a step whose tokens are written down: the first that have something to teach.

    Args:
        groups: The number of groups in a step; with 0 nothing is kept or written.
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._left = 0
        self._marked: list[tuple[str, int]] = []  # rollout and branch, by the mark
        self._learned: list[Learned] = []
        self._updates = 0

    @property
    def watching(self) -> bool:
        """Whether a sample of the step is marked."""
        return bool(self._marked)

    def begin(self) -> None:
        """Begin a training step."""
        self._left, self._updates = self._groups, 0
        self._marked, self._learned = [], []

    def mark(self, group: Group, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples of a group, marked if the step has room for it."""
        if not self._left or not samples:
            return list(samples)
        self._left -= 1
        branch_keys = {
            id(branch): (trace.id, index)
            for trace in group.traces
            for index, branch in enumerate(trace.branches)
        }
        marked = []
        for sample in samples:
            marked.append(replace(sample, mark=len(self._marked)))
            self._marked.append(branch_keys[id(sample.branch)])
        return marked

    def update(self, seen: Mapping[int, Seen]) -> None:
        """Add what an optimizer step has seen, by the mark of the sample."""
        self._updates += 1
        for mark in sorted(seen):
            rollout, branch = self._marked[mark]
            one = seen[mark]
            advantages, logprobs, ratios, weights = one.floats.tolist()
            clipped, dropped, bounded = one.flags.int().tolist()
            self._learned.append(
                Learned(
                    rollout=rollout,
                    branch=branch,
                    update=self._updates,
                    mask=one.mask.int().tolist(),
                    advantages=advantages,
                    logprobs=logprobs,
                    log_ratios=ratios,
                    weights=weights,
                    clipped=clipped,
                    dropped=dropped,
                    bounded=bounded,
                    teacher_logprobs=[] if one.teacher is None else one.teacher.tolist(),
                )
            )

    def write(self, file: Path) -> None:
        """Write the step's lines, if there are any."""
        if self._learned:
            write_learned(file, self._learned)
