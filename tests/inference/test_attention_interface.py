"""How far back a model's tokens see, found from its own masks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from vf.inference.attention_interface import Reach, UnsupportedAttention, scaled_by_position

CPU = torch.device("cpu")
NO_PADDING = torch.zeros(1, dtype=torch.long)


@pytest.mark.parametrize("width", [1, 2, 7, 16, 500])
@pytest.mark.parametrize("length", [1, 2, 16, 33, 100])
def test_windows_and_chunks_are_found(length: int, width: int) -> None:
    window = Reach(sliding_window_causal_mask_function(width), CPU).first(length)
    assert window.tolist() == [max(0, place + 1 - width) for place in range(length)]
    chunk = Reach(chunked_causal_mask_function(width, NO_PADDING), CPU).first(length)
    assert chunk.tolist() == [place // width * width for place in range(length)]


def first_two_and_a_window(_: object, __: object, query: torch.Tensor, key: torch.Tensor) -> object:
    return ((key < 2) | (key > query - 4)) & (key <= query)


@pytest.mark.parametrize(
    "mask",
    [
        bidirectional_mask_function,
        or_masks(causal_mask_function, lambda b, h, query, key: (query < 3) & (key < 3)),
        first_two_and_a_window,
    ],
    ids=["sees the future", "a prefix that sees itself whole", "holes"],
)
def test_other_masks_are_refused(mask: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(UnsupportedAttention, match="not causal, or has holes"):
        Reach(mask, CPU).first(20)


def test_queries_that_grow_with_the_sequence_grow_with_their_positions() -> None:
    """As a row of tokens would have them, wherever they are in the pack."""
    layer = SimpleNamespace(
        attn_temperature_tuning=True, use_rope=False, floor_scale=4, attn_scale=0.1
    )

    def length(place: int) -> float:
        return 1.0 + 0.1 * float(torch.log1p(torch.tensor(float((place + 1) // 4))))

    positions = [0, 1, 2, 3, 4, 2, 3, 4, 5, 0]
    packed = torch.tensor([length(place) for place in range(10)]).expand(1, 2, 1, -1).mT
    found = scaled_by_position(layer, packed, torch.tensor(positions))
    expected = torch.tensor([length(position) for position in positions])
    torch.testing.assert_close(found, expected.expand(1, 2, 1, -1).mT)
    layer.use_rope = True
    assert scaled_by_position(layer, packed, torch.tensor(positions)) is packed
