"""A tiny model of a family with an adapter of random values, published and merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from tests.trainer.learning.families import Family, widen
from vf.inference.model_files import save_module
from vf.inference.vllm.adapter_formats import adapter_format, convert_adapter
from vf.trainer.learning.model.building import build_model
from vf.trainer.learning.model.lora_targets import lora_targets
from vf.trainer.settings.config import TrainerArgs

RANK = 4
# What configs of published checkpoints have, and vLLM reads, but transformers does not write.
CONFIGS: dict[str, dict[str, Any]] = {
    "DeepSeek-V3, Kimi-K2": {"topk_method": "noaux_tc"},
    "LFM2": {"conv_dim": 64, "block_dim": 64, "block_ff_dim": 96},
    "MiniMax-M2": {"rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True},
    "Phi-MoE": {"architectures": ["PhiMoEForCausalLM"]},
}


def save_base(family: Family, folder: Path, **changes: Any) -> None:
    """Save a random model to a folder, as a published checkpoint is; see :class:`Family`."""
    if family.wrap is None:
        family.model(**changes).save_pretrained(folder)
    else:
        config = family.config(**changes)
        whole = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        widen(whole)
        whole.save_pretrained(folder)
    if family.name in CONFIGS:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | CONFIGS[family.name]))


def adapted(family: Family, folder: Path, **settings: Any) -> Any:
    """Save a base model to a folder, and return it with an adapter of random values."""
    save_base(family, folder)
    args = TrainerArgs(lora_rank=RANK, lora_alpha=2 * RANK, **settings)
    model = build_model(str(folder), args)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def publish(family: Family, folder: Path, **settings: Any) -> None:
    """Write ``base``, ``adapter`` as vLLM gets it, and ``merged`` to a folder.

    By default, all that vLLM applies of what is adapted by default is adapted.
    """
    form = adapter_format(family.config())
    if not settings:
        targets = lora_targets(family.model(), TrainerArgs())
        ignored = form.not_applied(targets.modules, targets.parameters)
        settings = {
            "lora_target_modules": [each for each in targets.modules if each not in ignored],
            "lora_target_parameters": [each for each in targets.parameters if each not in ignored],
        }
    model = adapted(family, folder / "base", **settings)
    model.save_pretrained(folder / "adapter")
    convert_adapter(folder / "adapter", form)
    save_module(model.merge_and_unload(), folder / "merged")
