"""Whether the attention's kernels are right on a model's device, in its precision and width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vf.inference.attention_interface import Reach, UnsupportedAttention
from vf.trainer.learning.attention.kernel_calls import Call, block_calls, segment_calls
from vf.trainer.learning.attention.prefix_tree import Segment
from vf.trainer.learning.attention.tree_attention import tree_attention


def check_attention(model: Any, tolerance: float) -> None:
    """Compare the attention and its gradients with a dense mask's, in the model's dtype and widths.

    Args:
        model: Of transformers'.
        tolerance: Relative difference that rounding explains.

    Raises:
        UnsupportedAttention: They differ, or this device has no kernel.
    """
    from transformers.masking_utils import sliding_window_causal_mask_function

    weight = model.get_input_embeddings().weight
    segments = (Segment(0, 5, 17), Segment(5, 9, 17), Segment(9, 13, 13), Segment(13, 17, 17))
    positions = torch.tensor([*range(9), *range(9, 13), *range(9, 13)], device=weight.device)
    seen = torch.zeros(17, 17, dtype=torch.bool, device=weight.device)
    for each in segments:
        block = seen[each.start : each.last, each.start : each.end]
        block.copy_(torch.ones_like(block).tril())
    window = Reach(sliding_window_causal_mask_function(6), weight.device)
    near = seen & (positions[:, None] - positions < 6)
    widths = {getattr(module, "head_dim", None) for module in model.modules()}
    for width in sorted(each for each in widths if isinstance(each, int)) or [64]:
        for calls, mask in (
            (segment_calls(segments), seen),
            (block_calls(segments, window, 13, 4), near),
        ):
            gap = _gap(calls, mask, width, weight)
            if not gap <= tolerance:
                raise UnsupportedAttention(f"the attention's kernel is off by {gap:.2g}")


def _gap(calls: Sequence[Call], mask: torch.Tensor, width: int, like: torch.Tensor) -> float:
    """Return the largest relative difference of outputs and gradients."""
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> torch.Tensor:
        drawn = torch.randn(heads, len(mask), width, generator=generator)
        return drawn.to(like.device, like.dtype).requires_grad_(True)

    inputs, grad = (draw(4), draw(2), draw(2)), draw(4).detach().transpose(0, 1)
    with torch.enable_grad():
        try:
            mine = tree_attention(*inputs, calls, width**-0.5)
            found = [mine, *torch.autograd.grad(mine, inputs, grad)]
        except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
            raise UnsupportedAttention(f"{like.device.type} has no kernel: {error}") from error
        dense = _dense_attention(*inputs, mask)
        expected = [dense, *torch.autograd.grad(dense, inputs, grad)]
    gaps = []
    for ours, theirs in zip(found, expected, strict=True):
        theirs = theirs.detach().float()
        gaps.append((ours.detach().float() - theirs).norm() / theirs.norm())
    return float(torch.stack(gaps).max())


def _dense_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    groups = len(query) // len(key)
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    scores = (query.float() @ key.float().mT) * float(query.shape[-1] ** -0.5)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights @ value.float()).to(query.dtype).transpose(0, 1)
