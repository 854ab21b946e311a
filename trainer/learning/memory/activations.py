"""What a forward pass keeps for its backward pass, counted on the model's own code.

The model is made on the device ``meta``, where a tensor has a shape and no memory, and computes a
row of tokens there. What autograd saves meanwhile is added up. So experts, recurrent states, norms
and adapters of any family count as its code has them, and no family has to be known by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from vf.trainer.learning.model.building import with_lora
from vf.trainer.learning.model.precision import compute_dtype, exact_ends
from vf.trainer.settings.config import TrainerArgs

log = logging.getLogger(__name__)

NAME = "vf_counted"
TOKENS = 256, 512  # in the rows that are counted: multiples of the chunks of recurrent layers
# Where a model's code cannot run on that device: what a layer of a dense decoder keeps of a token,
# in numbers for each of its hidden size (Korthikanti et al. 2022, arXiv:2205.05198, section 4.1).
ROUGHLY = 17
ADAPTER = ("lora_", "train_")  # settings of the adapter begin so


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes that a part of a model keeps of T tokens: ``fixed`` + T·``per_token``."""

    fixed: float = 0.0
    per_token: float = 0.0

    def of(self, tokens: int) -> int:
        """Return the bytes for that many tokens."""
        return int(self.fixed + tokens * self.per_token)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a forward pass keeps, up to the head.

    Attributes:
        layers: Of each layer.
        rest: Of what is before and behind them.
        widest: Bytes of a token in the widest tensor that a layer keeps.
        trained: Trained parameters.
    """

    layers: tuple[Part, ...]
    rest: Part
    widest: float
    trained: int


def kept(build: Callable[[torch.dtype], Any], args: TrainerArgs) -> Kept:
    """Count what a model keeps when it is trained as the settings say.

    Attention counts as the trainer's kernels keep it, whatever windows, sinks or caps it has:
    queries, keys, values, the output and its log-sum-exp. With ``packing = false`` keys and values
    are repeated for their query heads.

    Args:
        build: Makes the model, without adapters, on the device ``meta``.
        args: ``[trainer.args]``.
    """
    names = {"use_lora", "bf16", "packing"}
    if args.use_lora:
        names |= {name for name in type(args).model_fields if name.startswith(ADAPTER)}
        names.add("train_vision")
    usual = {name: getattr(args, name) for name in sorted(names)}
    usual["packing"] = args.packing and not args.images
    return _counted(build, TrainerArgs(**usual).model_dump_json())


@lru_cache(maxsize=64)
def _counted(build: Callable[[torch.dtype], Any], settings: str) -> Kept:
    args = TrainerArgs.model_validate_json(settings)
    dtype = compute_dtype(args)
    model = build(dtype)
    if dtype != torch.float32:
        exact_ends(model)
    if args.use_lora:
        model = with_lora(model, args).get_base_model()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    try:
        with _counting(model, repeat=not args.packing):
            few, many = (_Count(model, tokens) for tokens in TOKENS)
    except Exception as error:  # a kernel for one device only, or a choice that depends on data
        log.warning(
            "what %s keeps for its backward pass is a rough estimate: %s: %s",
            type(model).__name__,
            type(error).__name__,
            error,
        )
        return _rough(model, trained)
    parts = {
        layer: _line(few.kept.get(layer, 0), size, *TOKENS) for layer, size in many.kept.items()
    }
    rest = parts.pop(None, Part())
    return Kept(tuple(parts.values()), rest, many.widest / TOKENS[1], trained)


def _rough(model: Any, trained: int) -> Kept:
    text = model.config.get_text_config()
    width = model.get_input_embeddings().weight.element_size() * text.hidden_size
    layers = text.num_hidden_layers * (Part(0, ROUGHLY * width),)
    return Kept(layers, Part(0, 2 * width), 4 * width, trained)


def _line(few: int, many: int, tokens: int, more: int) -> Part:
    slope = (many - few) / (more - tokens)
    return Part(few - slope * tokens, slope)


class _Count:
    """Counts what one forward pass of a model keeps.

    Attributes:
        kept: Bytes by layer; None for what is outside of layers. A tensor that several keep counts
            with the first.
        widest: Bytes of the largest tensor that a layer keeps.
    """

    def __init__(self, model: Any, tokens: int) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.kept: dict[int | None, int] = {}
        self.widest = 0
        self._layer: int | None = None
        own = [*model.parameters(), *model.buffers()]
        self._held = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in own}
        layers = [
            module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
        ]
        hooks = []
        for index, layer in enumerate(layers):
            hooks += [
                layer.register_forward_pre_hook(self._enter(index)),
                layer.register_forward_hook(self._enter(None)),
            ]
        ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
        positions = torch.zeros(1, tokens, dtype=torch.long, device="meta")
        try:
            with saved_tensors_hooks(self._keep, lambda tensor: tensor):
                model.base_model(input_ids=ids, position_ids=positions, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, layer: int | None) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._layer = layer

        return enter

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in self._held:
            self._held[id(storage)] = storage  # which keeps its id from being used again
            size = storage.nbytes()
            self.kept[self._layer] = self.kept.get(self._layer, 0) + size
            if self._layer is not None:
                self.widest = max(self.widest, size)
        return tensor


class _FusedAttention(torch.autograd.Function):
    """Keeps what a fused kernel keeps, and computes nothing."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, lse)
        return out


class _GroupedProduct(torch.autograd.Function):
    """Keeps what the product of rows with their experts' matrices keeps, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, matrices)
        return rows.new_empty(len(rows), matrices.shape[-1])


class _WithoutData(TorchFunctionMode):
    """Replaces what the device ``meta`` refuses: grouped products in float32, and conditions."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("grouped_mm", "_grouped_mm", "grouped_mm_fallback"):
            apply: Any = _GroupedProduct.apply
            return apply(args[0], args[1])
        if func is torch.Tensor.__bool__:
            return False
        return func(*args, **(kwargs or {}))


@contextmanager
def _counting(model: Any, *, repeat: bool) -> Iterator[None]:
    from transformers import AttentionInterface

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, None]:
        if repeat:
            groups = query.shape[1] // key.shape[1]
            key, value = (heads.repeat_interleave(groups, 1) for heads in (key, value))
        apply: Any = _FusedAttention.apply
        return apply(query, key, value).transpose(1, 2), None

    def autocast(device_type: str, *args: Any, **settings: Any) -> Any:
        return nullcontext() if device_type == "meta" else usual(device_type, *args, **settings)

    AttentionInterface.register(NAME, attend)
    model.eval()
    model.set_attn_implementation(NAME)
    usual = torch.autocast
    # PEFT turns it off where it adapts experts, but torch does not know it on this device.
    vars(torch)["autocast"] = autocast
    try:
        with torch.enable_grad(), _WithoutData():
            yield
    finally:
        vars(torch)["autocast"] = usual
