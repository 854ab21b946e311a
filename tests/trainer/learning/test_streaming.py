"""Groups of a step that are split over its optimizer steps while they come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf.traces.trace import Branch
from vf.trainer.learning.batch import Sample
from vf.trainer.learning.streaming import StepBatch

LENGTH = 8


def group(number: int, size: int = 2) -> list[Sample]:
    """Return samples that say which group they are of."""
    branch = Branch([number] * LENGTH, [1] * LENGTH, [-1.0] * LENGTH, [0] * LENGTH, [0] * LENGTH)
    return [Sample(branch, 1.0)] * size


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
