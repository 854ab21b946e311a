"""Models are written as they were loaded, whatever transformers thinks of their flags."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GenerationConfig, GptOssConfig

from vf.inference.model_files import Checkpoint, load_module, resolve_model, save_module
from vf.runtime.errors import ConfigError

LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}


def test_a_model_whose_sampling_flags_contradict_each_other_is_written(tmp_path: Path) -> None:
    model = load_module("tiny", torch.float32)
    generation = model.generation_config
    generation.update(do_sample=False, temperature=0.6, eos_token_id=[0, 2])
    with pytest.raises(ValueError, match="temperature"):
        model.save_pretrained(tmp_path / "theirs")
    save_module(model, tmp_path / "ours")
    assert model.generation_config is generation
    flags = GenerationConfig.from_pretrained(tmp_path / "ours")
    assert (flags.temperature, flags.eos_token_id) == (0.6, [0, 2])
    assert "max_length" not in json.loads((tmp_path / "ours/generation_config.json").read_text())
    weights = load_module(str(tmp_path / "ours"), torch.float32).state_dict()
    assert all(torch.equal(weights[name], each) for name, each in model.state_dict().items())


@pytest.mark.parametrize(("config_class", "experts"), [(Gemma2Config, {}), (GptOssConfig, LOCAL)])
def test_a_model_that_sdpa_cannot_compute_is_loaded(
    config_class: Any, experts: dict[str, int], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64, "head_dim": 8}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = config_class(**sizes, **heads, **experts)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load_module(str(tmp_path), torch.float32)
    assert torch.isfinite(model(input_ids=torch.arange(9)[None]).logits).all()


@pytest.mark.parametrize("load", [Checkpoint.find, lambda name: load_module(name, torch.float32)])
def test_a_file_of_weights_that_is_cut_off_is_named(
    load: Callable[[str], object], tmp_path: Path
) -> None:
    shutil.copytree(resolve_model("tiny"), tmp_path / "half")
    weights = tmp_path / "half/model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ConfigError, match=r"half/model\.safetensors: .* not copied whole"):
        load(str(tmp_path / "half"))


@pytest.mark.parametrize("damaged", ["adapter", "base"])
def test_weights_of_an_adapter_and_of_its_base_are_looked_at(damaged: str, tmp_path: Path) -> None:
    for name in ("adapter", "base"):
        (tmp_path / name).mkdir()
    (tmp_path / damaged / "weights.safetensors").write_bytes(b"")
    config = {"base_model_name_or_path": str(tmp_path / "base"), "r": 4}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=f"{damaged}/weights.safetensors"):
        Checkpoint.find(str(tmp_path / "adapter"))
