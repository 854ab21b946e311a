"""Which way to log-probabilities a model supports, found by comparing them on the model.

A model may hold on to what lies outside of the attention function (a state in a layer of its own
kind, a window in its masks, positions that it counts itself), or change its logits after the last
layer. None of it has to be known by name: where packed log-probabilities are not those of padded
rows, rows are padded, and the log says so; where the head's matrix does not give the model's
logits, the model itself does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from vf.inference.attention_interface import Reach, UnsupportedAttention
from vf.inference.embedded.sight import Sight
from vf.inference.rendering.vision import Vision
from vf.runtime.errors import ConfigError
from vf.traces.trace import Branch
from vf.trainer.learning.attention.kernel_calls import AnyCall, block_calls, segment_calls
from vf.trainer.learning.attention.prefix_tree import Segment, build_tree
from vf.trainer.learning.attention.tree_attention import tree_attention
from vf.trainer.learning.batches.batch import MicroBatch, Sample, collate
from vf.trainer.learning.model.forward import Forward, Head, How
from vf.trainer.learning.model.head import ModelHead, layers_of
from vf.trainer.learning.model.recurrent_layers import STATEFUL
from vf.trainer.learning.sharding.copies import Copies

log = logging.getLogger(__name__)

# Relative difference of the attention's gradients, and mean difference of log-probabilities in
# nats, that rounding explains. In low precision the latter depends on the model, so what padding
# changes is measured too: that many times as much is allowed.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
LOW_PRECISION = 0.03
TIMES_PADDING = 4.0
LARGE = 100.0  # factor of hidden states, at which no cap of logits can be overlooked


def choose_forward(
    model: Any,
    longest: int,
    *,
    packing: bool = True,
    sharding: Copies | None = None,
    deterministic: bool = False,
    vision: Vision | None = None,
) -> Forward:
    """Return the best way to log-probabilities that is exact on a model.

    Args:
        model: A causal language model of transformers', in evaluation mode.
        longest: Tokens of the longest sequence that it will be asked about.
        packing: Whether anything but padded rows is wanted.
        sharding: The way in which the trainer processes hold the model.
        deterministic: See :func:`~vf.trainer.learning.model.forward.token_logprobs`.
        vision: The model's processor of images, with which rows are padded; None for text alone.

    Raises:
        ConfigError: If ``deterministic`` is asked for, and the model is none for which it is
            written.
    """
    packing = packing and vision is None
    # On a GPU, kernels are not those of a vLLM server: nothing is gained by it.
    deterministic = deterministic and _weight(model).device.type == "cpu"
    if deterministic and any("experts" in name for name, _ in model.named_modules()):
        raise ConfigError(
            "trainer.args.deterministic = true cannot hold for a model with experts: how many "
            "tokens each gets depends on the batch; set it to false"
        )
    plain = Forward(model, "padded", "whole", sharding)
    samples, batch = _probe(model, longest)
    with torch.no_grad():
        expected = plain(batch, 1.0).logprobs
        noise = _difference(torch.cat([plain(row, 1.0).logprobs for row in samples]), expected)
    allowed = max(_tolerance(model), TIMES_PADDING * noise)
    heads = _heads(model, plain.run)

    def first_exact(how: How) -> tuple[Forward | None, str]:
        """Return the first exact way, and why the one before was not."""
        reason = ""
        for head in heads:
            forward = Forward(model, how, head, sharding, deterministic=deterministic)
            try:
                with torch.no_grad(), forward.active():
                    gap = _difference(forward(batch, 1.0).logprobs, expected)
            except Exception as error:  # whatever it is, another way does without
                reason = _describe(error)
                continue
            if gap <= allowed:
                return forward, reason
            reason = f"{how} log-probabilities are off by {gap:.2g} nats"
        return None, reason

    chosen = None
    if packing:
        try:
            _refuse_layers(model)
            check_attention(model, _tolerance(model))
            chosen, reason = first_exact("packed")
        except Exception as error:  # of models without attention, among others
            reason = _describe(error)
        if deterministic and (chosen is None or chosen.head != "linear" or chosen.apart):
            raise ConfigError(
                "trainer.args.deterministic = true needs a model that is trained packed, with "
                f"plain causal attention and a linear head, and {type(model).__name__} is none"
                f"{': ' + reason if reason else ''}; set it to false"
            )
        if chosen is None:
            log.warning(
                "%s cannot be trained packed, so rows are padded, which is slower: %s",
                type(model).__name__,
                reason,
            )
    if chosen is None:
        chosen, reason = first_exact("padded")
    if chosen is None:
        chosen = plain
    if chosen.head == "whole":
        log.warning("the model computes the logits of all trained tokens at once: %s", reason)
    if vision is not None:
        chosen.sight = Sight(model, vision)
    return chosen


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _heads(model: Any, run: Any) -> tuple[Head, ...]:
    """Return how hidden states may become logits, the fastest first.

    The head's matrix alone is left out where the model does more: a soft cap of 30 hardly shows in
    the small logits of a model that knows little, and will once it has learned. So they are
    compared on hidden states that are far too large.
    """
    ids = torch.arange(2, 10, device=_weight(model).device)[None]
    try:
        with torch.no_grad():
            linear, own = run(both_heads, model, ids)
        gap = float((linear - own).norm() / own.norm())
    except Exception as error:
        log.debug("the model's head cannot be run apart: %s", _describe(error))
        return "linear", "whole"
    return ("linear", "whole") if gap <= _tolerance(model) else ("model", "whole")


def both_heads(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 logits ``[T, V]`` of large hidden states, by the head alone and by the model.

    Args:
        model: A causal language model of transformers'.
        ids: int64 ``[1, T]``, of which the hidden states are made.
    """
    output = layers_of(model)(input_ids=ids, use_cache=False)
    hidden = output.last_hidden_state[0] * LARGE
    linear = model.get_output_embeddings()(hidden).float()
    return linear, ModelHead(model, type(output))(hidden).float()


def _refuse_layers(model: Any) -> None:
    """Refuse layers that a short sequence may not tell from attention.

    Raises:
        UnsupportedAttention: If there is such a layer.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    attending = {"full_attention", "sliding_attention", "chunked_attention", "hybrid"}
    if other := sorted(kinds - attending - STATEFUL - {"mlp", "moe"}):
        raise UnsupportedAttention(f"layers of the kind {', '.join(other)}")


def _probe(model: Any, longest: int) -> tuple[list[MicroBatch], MicroBatch]:
    """Return sequences that share a stem, some of them more, and one that shares nothing.

    Returns:
        Each alone, and all together with their tree.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary: int = model.config.get_text_config().vocab_size

    def ids(count: int) -> list[int]:
        drawn: list[int] = torch.randint(vocabulary, (count,), generator=generator).tolist()
        return drawn

    stem, fork = ids(19), ids(5)
    sequences = [stem + fork + ids(7), stem + fork + ids(9), stem + ids(12), ids(11)]
    masks = [[0] * 10 + [1] * (len(sequence) - 10) for sequence in sequences]
    samples = [
        Sample(Branch(tokens, mask, [0.0] * len(tokens), [0] * len(tokens), [0] * len(tokens)), 0.0)
        for tokens, mask in zip(sequences, masks, strict=True)
    ]
    tree = build_tree(sequences, masks, [0, len(stem + fork), len(stem), 0])
    # The attention is given the longest to come, and refuses what would not hold for it.
    batch = replace(collate(samples), tree=replace(tree, longest=max(longest, tree.longest)))
    device = _weight(model).device
    return [collate([sample]).to(device) for sample in samples], batch.to(device)


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    gap = (actual - expected).abs().mean()
    return float(gap) if bool(torch.isfinite(gap)) else float("inf")


def _tolerance(model: Any) -> float:
    return TOLERANCE.get(_weight(model).dtype, LOW_PRECISION)


def _weight(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model.get_input_embeddings().weight
    return weight


def check_attention(model: Any, tolerance: float) -> None:
    """Compare the attention and its gradients with a dense mask's, in the model's dtype and widths.

    Args:
        model: A model of transformers.
        tolerance: Relative difference that rounding explains.

    Raises:
        UnsupportedAttention: If the results differ, or this device has no kernel.
    """
    from transformers.masking_utils import sliding_window_causal_mask_function

    weight = model.get_input_embeddings().weight
    segments = (Segment(0, 5, 17), Segment(5, 9, 17), Segment(9, 13, 13), Segment(13, 17, 17))
    positions = torch.tensor([*range(9), *range(9, 13), *range(9, 13)], device=weight.device)
    seen = torch.zeros(17, 17, dtype=torch.bool, device=weight.device)
    for segment in segments:
        block = seen[segment.start : segment.last, segment.start : segment.end]
        block.copy_(torch.ones_like(block).tril())
    window = Reach(sliding_window_causal_mask_function(6), weight.device)
    near = seen & (positions[:, None] - positions < 6)
    widths = {getattr(module, "head_dim", None) for module in model.modules()}
    for width in sorted(size for size in widths if isinstance(size, int)) or [64]:
        for calls, mask in (
            (segment_calls(segments, 2, weight.device), seen),
            (block_calls(segments, window, 13, 4), near),
        ):
            gap = _gap(calls, mask, width, weight)
            if not gap <= tolerance:
                raise UnsupportedAttention(f"the attention's kernel is off by {gap:.2g}")


def _gap(calls: Sequence[AnyCall], mask: torch.Tensor, width: int, like: torch.Tensor) -> float:
    """Return the largest relative difference of outputs and gradients."""
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> torch.Tensor:
        drawn = torch.randn(heads, len(mask), width, generator=generator)
        return drawn.to(like.device, like.dtype).requires_grad_(True)

    inputs, grad = (draw(4), draw(2), draw(2)), draw(4).detach().transpose(0, 1)
    with torch.enable_grad():
        try:
            mine = tree_attention(*inputs, calls, width**-0.5)
            computed = [mine, *torch.autograd.grad(mine, inputs, grad)]
        except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
            raise UnsupportedAttention(f"{like.device.type} has no kernel: {error}") from error
        dense = _dense_attention(*inputs, mask)
        expected = [dense, *torch.autograd.grad(dense, inputs, grad)]
    gaps = []
    for ours, theirs in zip(computed, expected, strict=True):
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
