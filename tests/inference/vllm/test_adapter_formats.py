"""An adapter keeps its updates, to the bit, in the names and the layout that vLLM expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.inference.vllm.published_adapters import RANK, adapted
from tests.trainer.learning.families import BY_NAME
from vf.inference.vllm.adapter_formats import (
    FORMATS,
    STACKED,
    AdapterFormat,
    adapter_format,
    convert_adapter,
)

MIXTURES = [
    *("gpt-oss", "Qwen3-MoE", "Mixtral", "MiniMax-M2", "Phi-MoE", "DeepSeek-V3, Kimi-K2"),
    *("GLM-4-MoE", "Qwen3-Next", "Qwen3.5-MoE (text)", "Nemotron 3", "Gemma 4 MoE", "Qwen3.5-MoE"),
]
PREFIX = "base_model.model."


def published(name: str, folder: Path, **settings: Any) -> tuple[Any, AdapterFormat, Any]:
    """Return a family's adapted model, the format, and the tensors that vLLM gets."""
    family = BY_NAME[name]
    model = adapted(family, folder / "base", **settings)
    model.save_pretrained(folder / "adapter")
    form = adapter_format(family.config())
    convert_adapter(folder / "adapter", form)
    return model, form, load_file(folder / "adapter" / "adapter_model.safetensors")


def updates(model: Any) -> dict[str, torch.Tensor]:
    """Return what PEFT adds to each weight, by the weight's name."""
    deltas = {}
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight"):
            parameter = getattr(module, "parameter_name", "weight")
            path = name.removeprefix(PREFIX).replace(".base_layer", "")
            deltas[f"{path}.{parameter}"] = module.get_delta_weight("default").detach()
    return deltas


def product(tensors: Any, layer: str) -> torch.Tensor:
    a, b = (torch.as_tensor(tensors[f"{PREFIX}{layer}.lora_{half}.weight"]) for half in "AB")
    return 2.0 * b @ a


def stacked(form: AdapterFormat, tensors: Any, path: str, *, first: bool) -> torch.Tensor:
    """Return the update of all experts of a layer ``[E, out, in]`` from what vLLM gets."""
    if form.experts == STACKED:
        layer = f"{path}.base_layer" if first else path
        a, b = (tensors[f"{PREFIX}{layer}.lora_{half}.weight"] for half in "AB")
        return 2.0 * torch.einsum(
            "ore,eri->eoi", b.reshape(len(b), RANK, -1), a.reshape(-1, RANK, a.shape[1])
        )
    assert isinstance(form.experts, tuple)
    names = form.experts[:-1] if first else form.experts[-1:]
    experts = [
        torch.cat([product(tensors, f"{path}.{number}.{name}") for name in names])
        for number in range(4)
    ]
    return torch.stack(experts)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_experts_have_the_updates_that_peft_adds(name: str, tmp_path: Path) -> None:
    model, form, tensors = published(name, tmp_path)
    experts = {path: delta for path, delta in updates(model).items() if ".experts." in path}
    assert experts
    for path, delta in experts.items():
        layer, _, parameter = path.rpartition(".")
        for part, other in form.renames.items():
            layer = layer.replace(part, other)
        got = stacked(form, tensors, layer, first=parameter != "down_proj")
        expected = delta.mT if name == "gpt-oss" else delta  # whose weights are [E, in, out]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    model.save_pretrained(tmp_path / "plain")
    plain = load_file(tmp_path / "plain" / "adapter_model.safetensors")
    assert all(torch.equal(value, plain.get(name, value)) for name, value in tensors.items())


@pytest.mark.parametrize("name", ["gpt-oss", "Mixtral", "Nemotron 3"])
@pytest.mark.parametrize("parameter", ["first", "down_proj"])
def test_an_adapter_of_one_of_two_experts_layers_leaves_the_other(
    name: str, parameter: str, tmp_path: Path
) -> None:
    if parameter == "first":
        parameter = "up_proj" if name == "Nemotron 3" else "gate_up_proj"
    target = f"experts.{parameter}"
    model, form, tensors = published(name, tmp_path, lora_target_parameters=[target])
    [*deltas] = updates(model).items()
    assert deltas
    for path, delta in deltas:
        layer = path.rpartition(".")[0]
        for part, other_name in form.renames.items():
            layer = layer.replace(part, other_name)
        first = parameter != "down_proj"
        got = stacked(form, tensors, layer, first=first)
        expected = delta.mT if name == "gpt-oss" else delta
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
        other = stacked(form, tensors, layer, first=not first)
        assert not other.any()
        rows, columns = got.shape[1:]
        width = 1 if name == "Nemotron 3" else 2
        assert other.shape[1:] == ((columns, rows // width) if first else (width * columns, rows))


def test_a_fused_layer_is_published_in_halves(tmp_path: Path) -> None:
    model, _, tensors = published("GLM-4", tmp_path)
    delta = updates(model)["model.layers.1.mlp.gate_up_proj.weight"]
    halves = [product(tensors, f"model.layers.1.mlp.{name}") for name in ("gate_proj", "up_proj")]
    torch.testing.assert_close(torch.cat(halves), delta, rtol=0, atol=1e-6)
    assert not any("gate_up_proj" in name for name in tensors)


def test_keys_that_are_also_the_values_are_published_as_both(tmp_path: Path) -> None:
    model, form, tensors = published("Gemma 4 MoE", tmp_path)
    assert form.shared_kv
    own = [name for name in updates(model) if name.endswith("v_proj.weight")]
    values = [name for name in tensors if ".v_proj.lora_A" in name]
    assert len(values) == len(own) + len(form.shared_kv)
    for end in form.shared_kv:
        [path] = {name.partition(".lora_")[0] for name in tensors if f"{end}.lora_A" in name}
        for half in "AB":
            value = tensors[f"{path.removesuffix('k_proj')}v_proj.lora_{half}.weight"]
            assert torch.equal(value, tensors[f"{path}.lora_{half}.weight"])


def test_the_adapter_of_a_text_model_goes_by_the_names_of_its_composite(tmp_path: Path) -> None:
    _, _, tensors = published("Qwen3.5", tmp_path)
    assert {name.partition(".layers.")[0] for name in tensors} == {
        "base_model.model.model.language_model"
    }


def test_an_adapter_that_vllm_reads_as_it_is_stays_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    adapted(BY_NAME["Llama 3"], tmp_path / "base").save_pretrained(folder)
    file = folder / "adapter_model.safetensors"
    before = file.read_bytes()
    convert_adapter(folder, adapter_format(BY_NAME["Llama 3"].config()))
    assert file.read_bytes() == before


def test_every_mixture_of_the_table_is_tried_here() -> None:
    kinds = {BY_NAME[name].config().model_type for name in MIXTURES}
    assert kinds | {"gemma4_text"} == {name for name, form in FORMATS.items() if form.experts}
