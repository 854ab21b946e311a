"""Attention whose sums do not depend on what else is computed."""

from __future__ import annotations

import pytest
import torch

from vf.inference.invariant import LEAST_KEYS, TILE, attend

SCALE = 0.3


def heads(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("keys", [1, LEAST_KEYS, TILE, TILE + 33])
@pytest.mark.parametrize("batch", [1, 5])
def test_keys_that_all_share_are_read_once_without_a_difference(
    batch: int, keys: int, rows: int
) -> None:
    query = heads(batch, 3, rows, 16, seed=0)
    shared = heads(3, 2 * TILE, 16, seed=1), heads(3, 2 * TILE, 16, seed=2)
    key, value = heads(batch, 3, keys, 16, seed=3), heads(batch, 3, keys, 16, seed=4)
    seen = torch.arange(keys) < torch.arange(1, batch + 1)[:, None].clamp(max=keys)
    mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None, None]
    whole_key, whole_value = (
        torch.cat([first.expand(batch, -1, -1, -1), own], 2)
        for first, own in zip(shared, (key, value), strict=True)
    )
    first = mask.new_zeros(batch, 1, 1, 2 * TILE)

    out, lse = attend(query, key, value, mask, SCALE, shared)
    expected = attend(query, whole_key, whole_value, torch.cat([first, mask], -1), SCALE)

    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


@pytest.mark.parametrize("keys", [3, 130, 400])
def test_attention_is_softmax_attention(keys: int) -> None:
    generator = torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(2, 3, n, 16, generator=generator) for n in (5, keys, keys))
    mask = torch.zeros(5, keys).index_fill_(1, torch.tensor([1]), -torch.inf)
    out, lse = attend(q, k, v, mask, SCALE)
    scores = q.double() @ k.double().mT * SCALE + mask
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ v.double(), rtol=1e-5, atol=1e-5)
