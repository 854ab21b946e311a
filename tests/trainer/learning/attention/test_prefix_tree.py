"""Layouts of shared prefixes, against the sequences that they are made from."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.learning.forked_samples import forked_samples
from vf.traces.trace import Branch
from vf.trainer.learning.attention import prefix_tree
from vf.trainer.learning.attention.prefix_tree import PrefixTree, Segment, build_tree, sort
from vf.trainer.learning.batches.batch import Sample, micro_batches
from vf.trainer.learning.batches.packing import BATCH_COST, cost, pack, rows_of, share_out

few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=7)


def seen_by(tree: PrefixTree, place: int) -> list[int]:
    """Return the places that a token attends to, as the attention's calls have it."""
    places: list[int] = []
    for segment in tree.segments:
        if segment.start <= place < segment.last:
            places += range(segment.start, min(place + 1, segment.end))
    return places


@pytest.fixture
def _every_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_tree, "SEGMENT_COST", 0)
    monkeypatch.setattr(prefix_tree, "MERGE_COST", 0.0)


@pytest.mark.usefixtures("_every_fork")
@settings(max_examples=200, deadline=None)
@given(st.lists(few_tokens, min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_a_token_sees_exactly_what_came_before_it(
    sequences: list[list[int]], rng: random.Random
) -> None:
    order, shared = sort(sequences)
    rows = [sequences[index] for index in order]
    masks = [[rng.randint(0, 1) for _ in row] for row in rows]
    tree = build_tree(rows, masks, shared)
    ids, positions = tree.token_ids.tolist(), tree.position_ids.tolist()
    contexts = []
    for place in range(len(tree)):
        seen = seen_by(tree, place)
        assert [positions[other] for other in seen] == list(range(len(seen)))
        contexts.append([ids[other] for other in seen])
    # Nothing is there twice, and the contexts are the prefixes of the sequences.
    assert len({tuple(context) for context in contexts}) == len(contexts)
    prefixes = {tuple(row[: end + 1]) for row in rows for end in range(len(row))}
    assert {tuple(context) for context in contexts} == prefixes
    # Each trained token is predicted where exactly its past is seen.
    expected = [row[:end] for row, mask in zip(rows, masks, strict=True) for end in _trained(mask)]
    found = [contexts[place] for place in tree.predictors[tree.rows].tolist()]
    assert found == expected
    assert tree.longest == max(map(len, rows))


def _trained(mask: list[int]) -> list[int]:
    return [place for place in range(1, len(mask)) if mask[place]]


def test_a_group_is_its_prompt_and_then_its_completions() -> None:
    prompt = list(range(40))
    rows = [[*prompt, 100 + place, 200] for place in range(3)]
    order, shared = sort(rows)
    tree = build_tree(rows, [[0] * 40 + [1, 1]] * 3, shared)
    assert (order, shared) == ([0, 1, 2], [0, 40, 40])
    assert tree.token_ids.tolist() == [*prompt, 100, 200, 101, 200, 102, 200]
    assert tree.position_ids.tolist() == [*range(40), 40, 41, 40, 41, 40, 41]
    assert tree.segments == (
        Segment(0, 40, 46),
        Segment(40, 42, 42),
        Segment(42, 44, 44),
        Segment(44, 46, 46),
    )
    # The prompt's last token predicts three first tokens, with logits that are computed once.
    assert tree.predictors.tolist() == [39, 40, 42, 44]
    assert tree.rows.tolist() == [0, 1, 0, 2, 0, 3]


def test_a_short_common_beginning_is_not_worth_a_fork() -> None:
    rng = random.Random(0)
    tails = [[rng.randrange(512) for _ in range(400)] for _ in range(2)]
    assert sort([[7] * 10 + tail for tail in tails])[1] == [0, 0]
    assert sort([[7] * 90 + tail for tail in tails])[1] == [0, 90]


@pytest.mark.parametrize("budget", [60, 150, 1000])
def test_micro_batches_hold_every_sample_once_under_the_budget(budget: int) -> None:
    batch = forked_samples(7, groups=4, rollouts=8)
    packed = pack(batch, budget, max_rows=5)
    rows = []
    for micro in packed:
        assert micro.tree is not None
        assert micro.computed == len(micro.tree)
        assert micro.computed <= budget or len(micro.input_ids) == 1
        assert len(micro.input_ids) <= 5
        lengths = micro.attention_mask.sum(-1).tolist()
        rows += [ids[:n].tolist() for ids, n in zip(micro.input_ids, lengths, strict=True)]
    assert sorted(rows) == sorted(sample.branch.token_ids for sample in batch)
    # No worse than filling up one micro-batch after the other.
    plain = pack(batch, budget, max_rows=5, share=False)
    assert sum(m.computed for m in packed) <= sum(m.computed for m in plain)
    assert sum(m.computed for m in plain) == sum(map(len, batch))


def least_cost(samples: list[Sample], most: int, rows: int, *, apart: bool) -> int:
    """Return the fewest tokens, with each micro-batch's own cost, by trying all cuts."""
    sorted_rows = rows_of(samples, share=True)

    def fits(low: int, high: int) -> bool:
        part = sorted_rows[low:high]
        size = sum(len(row.sample) for row in part) if apart else cost(part)
        return high - low == 1 or (size <= most and high - low <= rows)

    best = [0]
    for end in range(1, len(sorted_rows) + 1):
        starts = [start for start in range(end) if fits(start, end)]
        costs = [best[start] + cost(sorted_rows[start:end]) + BATCH_COST for start in starts]
        best.append(min(costs))
    return best[-1]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("most_rows", [1, 3, 100])
@pytest.mark.parametrize("budget", [10, 60, 150, 1000])
def test_cuts_are_those_of_the_least_cost(budget: int, most_rows: int, *, apart: bool) -> None:
    for seed in range(6):
        samples = forked_samples(seed)
        batches = pack(samples, budget, most_rows, apart=apart)
        found = sum(batch.computed + BATCH_COST for batch in batches)
        assert found == least_cost(samples, budget, most_rows, apart=apart)


def test_packing_looks_at_each_sample_equally_often_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(sample: Sample) -> int:
        nonlocal looks
        looks += 1
        return len(sample.branch)

    def looks_at_each(count: int) -> float:
        nonlocal looks
        samples = [Sample(_branch([1, 2, 3 + number]), 1.0) for number in range(count)]
        looks = 0
        pack(samples, 100_000)
        return looks / count

    monkeypatch.setattr(Sample, "__len__", counted)
    assert looks_at_each(400) == looks_at_each(50)


def _branch(ids: list[int]) -> Branch:
    branch = Branch()
    branch.add_context(ids[:1], 0)
    branch.add_sampled(ids[1:], [-1.0] * len(ids[1:]), [0] * len(ids[1:]), 0)
    return branch


def test_cuts_fall_between_groups_where_they_can() -> None:
    """Eight rows fill the budget, and a group has six."""
    batch = []
    for group in range(4):
        for place in range(6):
            branch = Branch()
            branch.add_context([group] * 50, 0)
            branch.add_sampled([10 + place] * 10, [-1.0] * 10, [0] * 10, 0)
            batch.append(Sample(branch, 1.0))
    packed = pack(batch, 130)
    assert [len(micro.input_ids) for micro in packed] == [6, 6, 6, 6]
    assert [micro.computed for micro in packed] == [110] * 4


@pytest.mark.parametrize("ranks", [2, 3])
def test_shares_keep_what_is_shared_together_and_are_even(ranks: int) -> None:
    batch = forked_samples(2, groups=6, rollouts=8)
    shares = share_out(batch, [0] * ranks)
    assert sorted(id(sample) for part in shares for sample in part) == sorted(map(id, batch))
    tokens = [cost(rows_of(part, share=True)) for part in shares]
    assert max(tokens) <= 1.15 * sum(tokens) / ranks
    assert sum(tokens) <= 1.3 * cost(rows_of(batch, share=True))


def test_one_group_is_split_where_ranks_would_be_idle() -> None:
    batch = forked_samples(4, groups=1, rollouts=16)
    shares = share_out(batch, [0] * 2)
    tokens = [cost(rows_of(part, share=True)) for part in shares]
    assert min(tokens) > 0.7 * max(tokens)
    assert max(tokens) < cost(rows_of(batch, share=True))


def test_padded_micro_batches_count_their_padding() -> None:
    batch = forked_samples(4)
    assert all(m.computed == m.input_ids.numel() for m in micro_batches(batch, 200))
