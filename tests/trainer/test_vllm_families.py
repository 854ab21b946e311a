"""Adapters of tiny models of several families, trained through a real vLLM server on a CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inference.vllm.published_adapters import save_base
from tests.trainer.learning.families import BY_NAME
from tests.trainer.test_vllm_training import inference
from vf.inference.model_files import resolve_model
from vf.trainer.rl_trainer import RLTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STUB = Path(__file__).parents[1] / "inference" / "vllm" / "without_torchvision"
# Nats that the engine may differ by: vLLM computes linear attention on a CPU in bfloat16 alone.
GAPS = {"GLM-4": 1e-3, "Qwen3.5": 0.05, "Gemma 4 (text)": 1e-3, "Falcon-H1": 1e-3}
IN_THE_GATE = "Qwen3.5"  # has layers of two kinds


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.gate] * (name == IN_THE_GATE)) for name in GAPS],
)
def test_the_engine_samples_with_the_adapter_that_is_trained(
    name: str, make_trainer: Callable[..., RLTrainer], vllm_python: str, tmp_path: Path
) -> None:
    family, tiny, folder = BY_NAME[name], Path(resolve_model("tiny")), tmp_path / "model"
    vocabulary = json.loads((tiny / "config.json").read_text())["vocab_size"]
    sizes = dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), vocabulary)
    # Some of those that vLLM has on a CPU.
    sizes |= {"head_dim": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    settings = {"vocab_size", *family.settings}
    save_base(family, folder, **{key: size for key, size in sizes.items() if key in settings})
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny / file, folder)
    # Its prefix cache for hybrids needs chunked prefill, which a run turns off on a CPU.
    args: dict[str, Any] = {
        "enable_prefix_caching": False,
        "language_model_only": family.wrap is not None,
    }
    if GAPS[name] > 1e-3:
        args["dtype"] = "bfloat16"
    trainer = make_trainer(
        model=str(folder),
        inference=inference(
            vllm_python, restarts_per_hour=0, env={"PYTHONPATH": str(STUB)}, args=args
        ),
        learning_rate=1e-2,
        max_steps=3,
        batch_size=8,
        max_tokens=16,
    )
    lines = [trainer.step() for _ in range(3)]
    assert max(line["logprob_gap"] for line in lines) < GAPS[name]
    assert min(line["grad_norm"] for line in lines) > 0, "the adapter has changed"
