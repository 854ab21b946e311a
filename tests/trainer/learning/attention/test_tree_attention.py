"""Packed attention: windows, chunks, sinks and capped scores, against masks and against models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.masking_utils import (
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from tests.trainer.learning.attention.test_prefix_tree import seen_by
from tests.trainer.learning.families import BY_NAME, VOCABULARY, WINDOW
from tests.trainer.learning.forked_samples import forked_samples
from vf.inference.attention_interface import Reach
from vf.trainer.learning.attention import kernel_calls, prefix_tree
from vf.trainer.learning.attention.kernel_calls import AnyCall, Call, block_calls, segment_calls
from vf.trainer.learning.attention.prefix_tree import PrefixTree, Segment
from vf.trainer.learning.attention.tree_attention import switched_on, tree_attention
from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.batches.packing import pack

PACKED = (
    "Mistral",
    "Gemma 3 (text)",
    "OLMo 3",
    "Cohere 2",
    "Gemma 4 (text)",
    "Gemma 2",
    "gpt-oss",
    "Llama 4 (text)",
    "DeepSeek-V3, Kimi-K2",
    "Gemma 3",
)
CPU = torch.device("cpu")
WIDTH = 6  # of windows and chunks
REACHES: dict[str, Callable[[int], int] | None] = {
    "all": None,
    "window": lambda position: max(0, position + 1 - WIDTH),
    "chunk": lambda position: position // WIDTH * WIDTH,
}


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fork is shared, and a block ends within a segment as often as with it."""
    monkeypatch.setattr(kernel_calls, "BLOCK", (3, 5))
    monkeypatch.setattr(prefix_tree, "SEGMENT_COST", 0)
    monkeypatch.setattr(prefix_tree, "MERGE_COST", 0.0)


def reach_of(kind: str) -> Reach | None:
    no_padding = torch.zeros(1, dtype=torch.long)
    masks = {
        "window": lambda: sliding_window_causal_mask_function(WIDTH),
        "chunk": lambda: chunked_causal_mask_function(WIDTH, no_padding),
    }
    return Reach(masks[kind](), CPU) if kind in masks else None


def dense(inputs: tuple[torch.Tensor, ...], seen: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Attend as the formula says, with a sink as a key whose value is zero."""
    query, key, value, *sinks = inputs
    groups = len(query) // len(key)
    scores = query @ key.repeat_interleave(groups, 0).mT * 0.3
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks:
        scores = torch.cat([scores, sinks[0][:, None, None].expand(-1, len(seen), 1)], -1)
    weights = scores.softmax(-1)[..., : len(seen)]
    return (weights @ value.repeat_interleave(groups, 0)).transpose(0, 1)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("cap", [None, 1.5], ids=["uncapped", "capped"])
@pytest.mark.parametrize("sink", [False, True], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("kind", REACHES)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6), kv_heads=st.sampled_from([1, 2, 4]))
def test_attention_and_its_gradients_are_those_of_a_mask(
    kind: str, sink: bool, cap: float | None, seed: int, kv_heads: int
) -> None:
    (micro,) = pack(forked_samples(seed, groups=2, rollouts=3), 10**6)
    tree = tree_of(micro)
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64, requires_grad=True)
    inputs = tuple(draw(heads, len(tree), 8) for heads in (4, kv_heads, kv_heads))
    if sink:
        inputs = (*inputs, draw(4))
    seen, first = torch.zeros(len(tree), len(tree), dtype=torch.bool), REACHES[kind]
    for place, position in enumerate(tree.position_ids.tolist()):
        past = seen_by(tree, place)  # one for each position
        seen[place, past[first(position) if first else 0 :]] = True
    calls: Sequence[AnyCall] = segment_calls(tree.segments, kv_heads, CPU)
    if first or cap is not None:
        calls = block_calls(tree.segments, reach_of(kind), tree.longest, 4)
    sinks = inputs[3] if sink else None
    query, key, value = inputs[:3]
    found = tree_attention(query, key, value, calls, 0.3, sinks=sinks, cap=cap)
    expected = dense(inputs, seen, cap)
    torch.testing.assert_close(found, expected)
    grad = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def tree_of(micro: MicroBatch) -> PrefixTree:
    assert micro.tree is not None
    return micro.tree


@pytest.mark.parametrize("prompt", [0, 5], ids=["alone", "behind a prompt"])
@pytest.mark.parametrize(
    ("lengths", "count"),
    [([7] * 8, 1), ([40, 24, 33, 40, 1], 2), ([9, 7, 60, 80, 76], 3), ([24] * 9, 2)],
    ids=["equal", "padded", "far apart", "many"],
)
def test_leaves_of_about_one_length_are_one_call(
    lengths: list[int], count: int, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are so large that a weight over another token's sum would be infinite."""
    monkeypatch.setattr(kernel_calls, "LEAVES", 160)
    ends = torch.tensor([prompt, *lengths]).cumsum(0).tolist()
    segments = tuple(Segment(start, end, end) for start, end in pairwise(ends))
    if prompt:
        segments = (Segment(0, prompt, ends[-1]), *segments)
    calls = segment_calls(segments, 2, CPU)
    assert len(calls) == count + bool(prompt)
    seen = torch.zeros(ends[-1], ends[-1], dtype=torch.bool)
    for segment in segments:
        block = seen[segment.start : segment.last, segment.start : segment.end]
        block.copy_(torch.ones_like(block).tril())
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = tuple(draw(heads, ends[-1], 8).mul_(100.0).requires_grad_() for heads in (4, 2, 2))
    query, key, value = inputs
    found = tree_attention(query, key, value, calls, 0.3)
    expected = dense(inputs, seen, None)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found.sum(), inputs),
        torch.autograd.grad(expected.sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["window", "chunk"])
def test_what_no_window_reaches_is_not_computed(kind: str) -> None:
    """The cost grows with the sequence, not with its square, behind a long prefix too."""

    def cost(length: int) -> int:
        segments = (Segment(0, length, 2 * length), Segment(length, 2 * length, 2 * length))
        calls: tuple[Call, ...] = block_calls(segments, reach_of(kind), 2 * length, 10**6)
        assert sum(call.queries.stop - call.queries.start for call in calls) == 2 * length
        return sum(
            (call.queries.stop - call.queries.start) * sum(end - start for start, end in call.keys)
            for call in calls
        )

    assert cost(4096) == pytest.approx(4 * cost(1024), rel=0.01)
    assert cost(4096) <= 2 * 4096 * (WIDTH + kernel_calls.BLOCK[0])


def row_by_row(model: Any, micro: MicroBatch) -> torch.Tensor:
    """Return log-probabilities of trained tokens by the model alone, a row at a time."""
    found = []
    lengths = micro.attention_mask.sum(-1).tolist()
    for row, mask, length in zip(micro.input_ids, micro.loss_mask, lengths, strict=True):
        ids = row[:length]
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        logprobs = logits.float().log_softmax(-1).gather(-1, ids[1:, None])
        found.append(logprobs[mask[1:length], 0])
    return torch.cat(found)


def packed(model: Any, micro: MicroBatch) -> torch.Tensor:
    """Return the same by one pass over the tree."""
    tree = tree_of(micro)
    with switched_on(model):
        logits = model(
            input_ids=tree.token_ids[None],
            position_ids=tree.position_ids[None],
            attention_mask=torch.ones_like(tree.token_ids)[None],
            use_cache=False,
            vf_segments=tree.segments,
            vf_positions=tree.position_ids,
            vf_longest=tree.longest,
        ).logits[0, tree.predictors]
    found: torch.Tensor = logits.float().log_softmax(-1)
    return found[tree.rows, micro.input_ids[micro.loss_mask]]


def gradients(model: Any, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.autograd.backward((logprobs * torch.linspace(-1.0, 1.0, len(logprobs))).sum())
    named = model.named_parameters()
    return {name: each.grad.clone() for name, each in named if each.grad is not None}


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("name", PACKED)
def test_a_packed_tree_is_as_good_as_a_row_at_a_time(name: str) -> None:
    """Log-probabilities in float32 and gradients in float64 are those of the model's own."""
    model = BY_NAME[name].model()
    samples = forked_samples(0, groups=2, rollouts=4)
    for sample in samples:
        sample.branch.token_ids[:] = [token % VOCABULARY for token in sample.branch.token_ids]
    (micro,) = pack(samples, 10**6)
    tree = tree_of(micro)
    depths = {int(tree.position_ids[segment.start]) for segment in tree.segments}
    assert min(depths - {0}) < WINDOW < 4 * WINDOW < max(depths)  # forks near and far
    with torch.no_grad():
        expected = row_by_row(model, micro)
        torch.testing.assert_close(packed(model, micro), expected, rtol=0.0, atol=3e-5)
    model.double().set_experts_implementation("eager")  # grouped products are in float32 at most
    by_row, by_tree = (gradients(model, way(model, micro)) for way in (row_by_row, packed))
    assert by_row.keys() == by_tree.keys()
    for parameter, gradient in by_row.items():
        gap = float((by_tree[parameter] - gradient).norm())
        assert gap <= 1e-5 * float(gradient.norm()) + 1e-9, (parameter, gap)
