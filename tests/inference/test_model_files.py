"""Models are written as they were loaded, whatever transformers thinks of their flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from transformers import GenerationConfig

from vf.inference.model_files import load_module, save_module


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
