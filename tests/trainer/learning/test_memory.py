"""The predicted peak of memory is that of real updates, within 20 %."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from vf.trainer.learning.memory import (
    CEILING,
    Shape,
    free_memory,
    largest_budget,
    predict,
    trained_parameters,
)
from vf.trainer.settings.config import TrainerArgs

SHAPES: dict[str, dict[str, Any]] = {
    "wide": {
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "deep": {
        "vocab_size": 4096,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "tie_word_embeddings": True,
    },
    "many words": {
        "vocab_size": 32768,
        "hidden_size": 448,
        "intermediate_size": 1216,
        "num_hidden_layers": 6,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "tie_word_embeddings": True,
    },
}  # of 32, 23 and 29 M parameters
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("wide", 512, {"use_lora": False}),
    ("deep", 768, {}),
    ("many words", 512, {"use_lora": False, "gradient_checkpointing": True}),
]


@pytest.mark.skipif(sys.platform != "linux", reason="it is measured as on Linux")
@pytest.mark.parametrize(("shape", "tokens", "changes"), CASES)
@pytest.mark.slow
def test_the_prediction_is_near_the_measured_peak(
    shape: str, tokens: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    lengths = {"max_seq_len": tokens // 4, "max_prompt_len": tokens // 8}
    args = {"micro_batch_tokens": tokens, **lengths, **changes}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.trainer.learning.peak_of_updates"),
            *(str(tmp_path), json.dumps(SHAPES[shape]), json.dumps(args)),
        ],
        # Freed tensors go back to the system, so that what is resident is what is in use.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(found["parts"].values()) == pytest.approx(found["peak"], rel=0.2), found


@pytest.mark.parametrize(
    "changes",
    [{}, {"train_mlp": False}, {"train_unembed": True}, {"lora_target_modules": ["q_proj"]}],
)
def test_an_adapter_has_as_many_parameters_as_predicted(changes: dict[str, Any]) -> None:
    from vf.trainer.learning.lora_targets import lora_targets

    config = LlamaConfig(**SHAPES["wide"])
    args = TrainerArgs(lora_rank=8, **changes)
    model = AutoModelForCausalLM.from_config(config)
    parameters = model.num_parameters()
    adapted = get_peft_model(
        model, LoraConfig(r=8, target_modules=lora_targets(model, args), task_type="CAUSAL_LM")
    )
    trained, _ = adapted.get_nb_trainable_parameters()
    assert trained_parameters(Shape.of(config, parameters), args) == trained


def test_what_is_there_beside_the_step_counts() -> None:
    shape = Shape.of(LlamaConfig(**SHAPES["deep"]), 1_000_000)
    usual = predict(shape, TrainerArgs(), 1000)
    assert "reference" not in usual
    assert "key-value cache" not in usual
    args = TrainerArgs(kl_penalty_coef=0.1, reference_model="tiny")
    more = predict(shape, args, 1000, requests=4, max_seq_len=100)
    assert more["reference"] == 4_000_000
    # 4 requests of 7 pages, one more each, of 16 tokens; keys and values of 12 layers in float32.
    assert more["key-value cache"] == 4 * 8 * 16 * 2 * 384 * 12 * 4
    assert {name: more[name] for name in usual} == usual


@pytest.mark.parametrize("gib", [1, 2, 4, 8])
def test_the_budget_that_is_found_is_the_largest_that_fits(gib: int) -> None:
    shape = Shape.of(LlamaConfig(**SHAPES["deep"]), 23_000_000)
    args = TrainerArgs(micro_batch_tokens="auto", batch_size=256)
    tokens = largest_budget(shape, args, gib * 2**30)
    assert args.max_seq_len <= tokens < CEILING

    def peak(count: int) -> int:
        return sum(predict(shape, args, count).values())

    assert peak(tokens) <= gib * 2**30 < peak(tokens + 256)


def test_the_budget_that_is_found_has_bounds() -> None:
    shape = Shape.of(LlamaConfig(**SHAPES["deep"]), 23_000_000)
    args = TrainerArgs(micro_batch_tokens="auto", batch_size=256)
    assert largest_budget(shape, args, 1) == args.max_seq_len
    assert CEILING - 256 < largest_budget(shape, args, 2**50) <= CEILING
    small = TrainerArgs(micro_batch_tokens="auto", batch_size=8)
    assert largest_budget(shape, small, 2**50) == 8 * small.max_seq_len


def test_memory_that_is_free_is_that_of_this_machine() -> None:
    assert 2**20 < free_memory() < 2**45
