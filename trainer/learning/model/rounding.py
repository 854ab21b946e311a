"""What a model computes if layers of one kind round to a lower precision, and the others do not.

So the part of each kind in what a low precision changes can be told apart. A layer of that kind has
its inputs, its weights and what it returns rounded; attention has so its queries, keys and values.
Sums between layers stay in the model's precision, and are rounded only where the whole model is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from vf.traces.trace import Branch
from vf.trainer.learning.batches.sampling_support import Supports

ATTENTION = "attention"
WHOLE = "all layers"


def layer_kinds(model: Any) -> dict[str, list[torch.nn.Module]]:
    """Return the layers that have weights of their own, by kind.

    Args:
        model: A causal language model of transformers', with adapters or without.
    """
    head = model.get_output_embeddings()
    within = {id(part) for part in head.modules()} if head is not None else set()
    by_kind: dict[str, list[torch.nn.Module]] = {}
    for name, layer in model.named_modules():
        if not list(layer.parameters(recurse=False)):
            continue
        where, what = name.lower(), type(layer).__name__.lower()
        if id(layer) in within:
            kind = "head"
        elif isinstance(layer, torch.nn.Embedding):
            kind = "embedding"
        elif "norm" in what or "norm" in where.rsplit(".", 1)[-1]:
            kind = "normalisation"
        elif "attn" in where or "attention" in where:
            kind = "attention's projections"
        else:
            kind = "MLP" if "mlp" in where or "expert" in where else "other"
        by_kind.setdefault(kind, []).append(layer)
    return by_kind


def logprobs(model: Any, branches: Sequence[Branch], temperature: float) -> list[torch.Tensor]:
    """Return log p of each branch's N sampled tokens, a branch at a time.

    Args:
        model: A causal language model of transformers'.
        branches: The branches.
        temperature: The sampler's; logits are divided by it.

    Returns:
        Nats, float64 ``[N]`` for each branch, on the CPU.
    """
    rows = []
    device = model.get_input_embeddings().weight.device
    for branch in branches:
        ids = torch.tensor([branch.token_ids], device=device)
        sampled = torch.tensor(branch.loss_mask, dtype=torch.bool, device=device).nonzero()[:, 0]
        with torch.no_grad():
            every = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        scores = every.logits[0, sampled - 1].double() / temperature
        if branch.supports:
            own = Supports.of([branch.supports[index] for index in sampled.tolist()])
            scores = own.to(device).cut(scores)
        rows.append(scores.log_softmax(-1).gather(1, ids[0, sampled, None])[:, 0].cpu())
    return rows


def rounding_gaps(
    model: Any,
    branches: Sequence[Branch],
    temperature: float,
) -> dict[str, torch.Tensor]:
    """Return what bfloat16 changes in log p, by the kind of the layers that compute in it.

    Args:
        model: A causal language model of transformers'. It is copied in float32, so there must be
            room for that, and does not change.
        branches: The branches, with N sampled tokens in all.
        temperature: See :func:`logprobs`.

    Returns:
        log p in bfloat16 − log p in float32, nats, float64 ``[N]``; for :data:`WHOLE` all is in it.
    """
    exact = copy.deepcopy(model).float().eval()
    expected = torch.cat(logprobs(exact, branches, temperature))
    gaps = {}
    for kind in (*layer_kinds(exact), ATTENTION):
        with rounded(exact, kind, torch.bfloat16):
            gaps[kind] = torch.cat(logprobs(exact, branches, temperature)) - expected
    whole = exact.to(torch.bfloat16)
    gaps[WHOLE] = torch.cat(logprobs(whole, branches, temperature)) - expected
    return gaps


@contextmanager
def rounded(model: Any, kind: str, dtype: torch.dtype) -> Iterator[None]:
    """Have layers of one kind compute in another precision until the block ends.

    Args:
        model: A causal language model of transformers', in one precision.
        kind: One of :func:`layer_kinds`, or :data:`ATTENTION`.
        dtype: The precision.
    """
    if kind == ATTENTION:
        with _RoundedAttention(dtype):
            yield
        return
    with ExitStack() as stack:
        for layer in layer_kinds(model)[kind]:
            stack.enter_context(_rounded_layer(layer, dtype))
        yield


class _RoundedAttention(TorchFunctionMode):
    """Attention's queries, keys and values in another precision, as torch's function takes them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **options)
        before = args[0].dtype if args else options["query"].dtype
        args, options = (_cast(values, self._dtype) for values in (args, options))
        return _cast(func(*args, **options), before)


@contextmanager
def _rounded_layer(layer: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    held: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    before: list[torch.dtype] = []

    def enter(
        module: torch.nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, Any]:
        # At each call, for the head and the embedding may have one weight.
        for parameter in module.parameters(recurse=False):
            held.append((parameter, parameter.data))
            before.append(parameter.dtype)
            parameter.data = parameter.data.to(dtype)
        return _cast(args, dtype), _cast(options, dtype)

    def leave(module: torch.nn.Module, args: Any, output: Any) -> Any:
        precision = before[0]
        restore()
        return _cast(output, precision)

    def restore() -> None:
        for parameter, data in held:
            parameter.data = data
        held.clear()
        before.clear()

    hooks = [
        layer.register_forward_pre_hook(enter, with_kwargs=True),
        layer.register_forward_hook(leave),
    ]
    try:
        yield
    finally:
        restore()
        for hook in hooks:
            hook.remove()


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return floating tensors in another precision, in whatever they are held."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple | list):
        return type(value)(_cast(item, dtype) for item in value)
    if isinstance(value, dict):
        return {name: _cast(item, dtype) for name, item in value.items()}
    return value
