"""The names and the layout in which vLLM expects the adapter of each family.

vLLM reads an adapter in PEFT's format, by the names that its own modules or the published
checkpoints have. Where it has no layer of a tensor's last name, it refuses the adapter; where it
has one, but below another path, it ignores the tensor in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Factors = tuple[torch.Tensor, torch.Tensor]

STACKED = "stacked"
GATED = ("gate_proj", "up_proj", "down_proj")
NUMBERED = ("w1", "w3", "w2")
_TENSOR = re.compile(r"(.+)\.lora_A\.weight")
_EXPERTS = re.compile(r"(.+\.experts)(?:\.base_layer)?")


@dataclass(frozen=True, slots=True)
class AdapterFormat:
    """How the adapter of a family is published.

    Attributes:
        renames: Parts of layers' paths, and what vLLM has in their place.
        experts: The layers of one expert, each of which has tensors of its own: gate, up and down,
            or up and down. Or ``STACKED``: a layer's experts stay together, as PEFT has them. None
            where vLLM adapts no experts.
        halves: Layers that vLLM adapts as two, by their names.
        shared_kv: Ends of paths of keys' layers whose output is also the values.
        ignored: Names of layers for which vLLM takes no adapter, or takes it and computes without.
    """

    renames: Mapping[str, str] = field(default_factory=dict)
    experts: tuple[str, ...] | str | None = None
    halves: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    shared_kv: tuple[str, ...] = ()
    ignored: frozenset[str] = frozenset()

    @property
    def is_peft(self) -> bool:
        """Whether an adapter is published as PEFT writes it."""
        return not (self.renames or self.experts or self.halves or self.shared_kv)

    def not_applied(self, modules: Iterable[str], parameters: Iterable[str]) -> list[str]:
        """Return which targets of an adapter vLLM does not apply.

        Args:
            modules: Names of linear layers, or ends of names.
            parameters: Names of tensors, or ends of names.
        """
        stacks = {name for name in parameters if not name.endswith(".weight")}
        layers = {name: name.removesuffix(".weight") for name in (*modules, *parameters)}
        return [
            name
            for name, layer in layers.items()
            if layer.rpartition(".")[2] in self.ignored or (not self.experts and name in stacks)
        ]


AS_PEFT = AdapterFormat()
_LANGUAGE_MODEL = {"model.layers.": "model.language_model.layers."}
_BEFORE_MODEL = {"model.model.layers.": "model.language_model.model.layers."}
# vLLM multiplies the weights of this layer into others when it loads them.
_ABSORBED = frozenset({"kv_b_proj"})
# vLLM reorders the weights of these layers when it loads them, but no adapter's.
_REORDERED = frozenset({"q_proj", "k_proj"})
_SPARSE = {".mlp.experts": ".block_sparse_moe.experts"}
_NO_HEAD = frozenset({"lm_head"})
_WITHOUT_HEAD = AdapterFormat(ignored=_NO_HEAD)

# By the `model_type` of a checkpoint's config. What is not listed is published as PEFT writes it.
FORMATS: dict[str, AdapterFormat] = {
    "cohere": _WITHOUT_HEAD,
    "cohere2": _WITHOUT_HEAD,
    "deepseek_v3": AdapterFormat(experts=GATED, ignored=_NO_HEAD | _ABSORBED),
    "gemma2": _WITHOUT_HEAD,
    "gemma3": _WITHOUT_HEAD,
    "gemma3_text": _WITHOUT_HEAD,
    "gemma4": AdapterFormat(experts=GATED, ignored=_NO_HEAD),
    "gemma4_text": AdapterFormat(experts=GATED, ignored=_NO_HEAD),
    "glm4": AdapterFormat(halves={"gate_up_proj": ("gate_proj", "up_proj")}, ignored=_NO_HEAD),
    "glm4_moe": AdapterFormat(experts=GATED, ignored=_NO_HEAD),
    "gpt_oss": AdapterFormat(experts=STACKED, ignored=_NO_HEAD),
    "llama4": AdapterFormat(_BEFORE_MODEL, ignored=_NO_HEAD | _REORDERED),
    "llama4_text": AdapterFormat(ignored=_REORDERED),
    "minimax_m2": AdapterFormat(_SPARSE, NUMBERED, ignored=_NO_HEAD),
    "mistral": _WITHOUT_HEAD,
    "mixtral": AdapterFormat(_SPARSE, NUMBERED),
    "nemotron_h": AdapterFormat(experts=("up_proj", "down_proj")),
    "olmo3": _WITHOUT_HEAD,
    "phimoe": AdapterFormat(_SPARSE, NUMBERED),
    "qwen2": _WITHOUT_HEAD,
    "qwen3_5": AdapterFormat(_LANGUAGE_MODEL),
    "qwen3_5_moe": AdapterFormat(_LANGUAGE_MODEL, STACKED),
    "qwen3_5_moe_text": AdapterFormat(experts=GATED),
    "qwen3_moe": AdapterFormat(experts=GATED),
    "qwen3_next": AdapterFormat(experts=GATED, ignored=_NO_HEAD),
    "seed_oss": _WITHOUT_HEAD,
    "smollm3": _WITHOUT_HEAD,
}


def adapter_format(config: Any) -> AdapterFormat:
    """Return how the adapter of a model is published.

    Args:
        config: The checkpoint's, one of transformers'; of a composite, the whole one.
    """
    form = FORMATS.get(config.model_type, AS_PEFT)
    text = config.get_text_config()
    if not getattr(text, "attention_k_eq_v", False):
        return form
    kinds = enumerate(text.layer_types)
    full = [number for number, kind in kinds if kind == "full_attention"]
    return replace(form, shared_kv=tuple(f".layers.{number}.self_attn.k_proj" for number in full))


def convert_adapter(folder: Path, form: AdapterFormat) -> None:
    """Rewrite an adapter that PEFT wrote as vLLM expects it; its updates stay equal to the bit.

    Args:
        folder: The adapter's.
        form: The format of the published adapter.
    """
    from safetensors.torch import load_file, save_file

    if form.is_peft:
        return
    path = folder / "adapter_model.safetensors"
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    names = {name.rpartition(".")[2] for name in config["target_parameters"] or ()}
    tensors = load_file(path)
    layers: dict[str, Factors] = {
        match[1]: (tensor, tensors[f"{match[1]}.lora_B.weight"])
        for name, tensor in tensors.items()
        if (match := _TENSOR.fullmatch(name))
    }
    converted: dict[str, torch.Tensor] = {}
    for layer, (a, b) in _as_served(layers, form, names, config["r"]):
        for part, other in form.renames.items():
            layer = layer.replace(part, other)
        converted |= {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
    # Tensors of two layers may share their memory, which a file cannot.
    converted = {name: tensor.clone() for name, tensor in converted.items()}
    save_file(converted, path, metadata={"format": "pt"})


def _as_served(
    layers: Mapping[str, Factors], form: AdapterFormat, names: set[str], rank: int
) -> Iterator[tuple[str, Factors]]:
    """Yield the factors ``A [r, in]`` and ``B [out, r]`` of each layer as vLLM has it.

    Args:
        layers: The factors of each layer as PEFT has it.
        form: The format of the published adapter.
        names: The last names of the tensors that PEFT adapts by name.
        rank: The adapter's rank.
    """
    done = set[str]()
    for layer, (a, b) in layers.items():
        if form.experts and (match := _EXPERTS.fullmatch(layer)):
            if (path := match[1]) not in done:
                done.add(path)
                gated = len(form.experts) != 2
                first, last = _stacks(path, layers, names, gated=gated)
                yield from _experts(path, first, last, form.experts, rank)
            continue
        path, _, name = layer.rpartition(".")
        if name in form.halves:
            for half, rows in zip(form.halves[name], b.chunk(2), strict=True):
                yield f"{path}.{half}", (a, rows)
            continue
        yield layer, (a, b)
        if layer.endswith(form.shared_kv):
            yield f"{path}.v_proj", (a, b)


def _stacks(
    path: str, layers: Mapping[str, Factors], names: set[str], *, gated: bool
) -> tuple[Factors, Factors]:
    """Return the factors of all experts' first layers, ``[r·E, in]`` and ``[out, r·E]``, and last.

    PEFT nests the adapters of two tensors of one module, the second outside. Where only one is
    adapted, the other gets factors of zeros, because vLLM takes both or none.
    """
    outer, inner = layers[path], layers.get(f"{path}.base_layer")
    if inner is not None:
        return inner, outer
    (a, b), width = outer, 1 + gated
    if "down_proj" in names:
        return (a.new_zeros(len(a), len(b)), b.new_zeros(width * a.shape[1], len(a))), outer
    return outer, (a.new_zeros(len(a), len(b) // width), b.new_zeros(a.shape[1], len(a)))


def _experts(
    path: str, first: Factors, last: Factors, names: tuple[str, ...] | str, rank: int
) -> Iterator[tuple[str, Factors]]:
    """Yield the factors of experts, together or one by one; gate and up have the same A."""
    if isinstance(names, str):
        yield f"{path}.base_layer", first
        yield path, last
        return
    apart = zip(_apart(first, rank), _apart(last, rank), strict=True)
    for number, ((a, b), down) in enumerate(apart):
        for name, rows in zip(names[:-1], b.chunk(len(names) - 1), strict=True):
            yield f"{path}.{number}.{name}", (a, rows)
        yield f"{path}.{number}.{names[-1]}", down


def _apart(factors: Factors, rank: int) -> Iterator[Factors]:
    """Yield each expert's ``A [r, in]`` and ``B [out, r]``."""
    a, b = factors
    experts = len(a) // rank
    rows, columns = a.reshape(experts, rank, -1), b.reshape(len(b), rank, experts).permute(2, 0, 1)
    return zip(rows, columns, strict=True)
