"""Groups of a step that are split over its optimizer steps while they come in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.packing import fills, share_out
from vf.trainer.learning.batches.streaming import StepBatch

LENGTH = 8
RANKS, BUDGET = 8, 1024


def group(number: int, size: int = 2) -> list[Sample]:
    """Return samples that say which group they are of."""
    branch = Branch([number] * LENGTH, [1] * LENGTH, [-1.0] * LENGTH, [0] * LENGTH, [0] * LENGTH)
    return [Sample(branch, 1.0)] * size


def slowest(arrivals: list[list[Sample]]) -> int:
    """Return how many tokens the slowest rank computes for samples that are shared out in turn."""
    loads = [0] * RANKS
    for samples in arrivals:
        share_out(samples, loads)
    return max(loads)


def numbers(samples: list[Sample]) -> list[int]:
    return sorted({sample.branch.token_ids[0] for sample in samples})


@pytest.mark.parametrize("streams", [False, True])
@given(
    arrival=st.integers(0, 12).flatmap(lambda count: st.permutations(range(count))),
    empty=st.sets(st.integers(0, 11), max_size=4),
    count=st.integers(1, 4),
)
def test_optimizer_steps_are_even_and_have_each_group_once(
    streams: bool, arrival: list[int], empty: set[int], count: int
) -> None:
    batch = StepBatch(count, bool) if streams else StepBatch(count)
    early: list[Sample] = []
    for number in arrival:
        early += batch.add(number, [] if number in empty else group(number))
    left, shares = batch.shares()
    teaching = sorted(set(arrival) - empty)
    assert sorted(number for share in shares for number in numbers(share)) == teaching
    sizes = [len(numbers(share)) for share in shares]
    assert len(sizes) == min(count, len(teaching))
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert numbers(early + left) == (numbers(shares[0]) if shares else [])
    assert len(early + left) == (len(shares[0]) if shares else 0), "none is trained on twice"
    assert len(numbers(early)) == (sizes[0] if streams and sizes else 0)


def test_five_groups_of_eight_are_three_and_two() -> None:
    batch = StepBatch(2, bool)
    early = [numbers(batch.add(number, group(number))) for number in range(5)]
    assert early == [[0], [], [1], [], [2]], "the second optimizer step may need the others"
    assert [numbers(share) for share in batch.shares()[1]] == [[0, 1, 2], [3, 4]]


def test_the_slowest_rank_computes_about_what_it_would_for_the_whole_step() -> None:
    rng = random.Random(0)

    def rollouts() -> list[Sample]:
        """Return a group of 8: a prompt of 100 tokens, answers of 10 to 100."""
        prompt, made = [rng.randrange(2**20) for _ in range(100)], []
        for _ in range(8):
            branch = Branch()
            answer = [rng.randrange(2**20) for _ in range(rng.randint(10, 100))]
            branch.add_context(prompt, 0)
            branch.add_sampled(answer, [-1.0] * len(answer), [0] * len(answer), 0)
            made.append(Sample(branch, 1.0))
        return made

    groups = [rollouts() for _ in range(64)]
    batch = StepBatch(1, lambda now: fills(now, RANKS, BUDGET, None, share=True))
    streamed = [batch.add(number, each) for number, each in enumerate(groups)]
    streamed = [*filter(None, streamed), batch.shares()[0]]
    whole = slowest([[sample for each in groups for sample in each]])
    assert len(streamed) > 3
    assert slowest(groups) > 2 * whole, "one by one, each rank computes each prompt"
    assert slowest(streamed) < 1.1 * whole
