"""The predicted peak of memory is that of real updates, within 15 %."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from tests.trainer.learning.families import BY_NAME
from tests.trainer.learning.memory.peak_of_updates import samples
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.memory.trainer_memory import (
    CEILING,
    Shape,
    Surroundings,
    activations,
    largest_budget,
    predict,
    trained_parameters,
)
from vf.trainer.learning.model.building import with_lora
from vf.trainer.learning.policy import Policy
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
SMALL: dict[str, Any] = {**SHAPES["deep"], "num_hidden_layers": 4, "head_dim": 64}
WINDOW = {"sliding_window": 32, "layer_types": 2 * ["sliding_attention", "full_attention"]}
STATES = {
    "layer_types": 2 * ["linear_attention", "full_attention"],
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
}
EXPERTS = {"moe_intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {"config": "LlamaConfig", **SHAPES["wide"]},
    "deep": {"config": "LlamaConfig", **SHAPES["deep"]},
    "many words": {"config": "LlamaConfig", **SHAPES["many words"]},
    "sliding windows": {"config": "Gemma3TextConfig", **SMALL, **WINDOW},
    "linear attention": {"config": "Qwen3_5TextConfig", **SMALL, **STATES},
    "experts": {"config": "Qwen3MoeConfig", **SMALL, **EXPERTS},
    "large vocabulary": {
        "config": "Qwen3Config",
        **SMALL,
        "vocab_size": 248_320,
        "hidden_size": 64,
        "num_hidden_layers": 2,
    },
    "composite": {
        "config": "Gemma3Config",
        "text_config": {**SMALL, **WINDOW},
        "vision_config": {**VISION, "num_hidden_layers": 1, "image_size": 28},
        "mm_tokens_per_image": 4,
    },
}
FULL, PADDED = {"use_lora": False}, {"use_lora": False, "packing": False}
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("dense", 512, FULL),
    ("dense", 512, PADDED),
    ("dense", 512, {**FULL, "bf16": True}),
    ("deep", 768, {}),
    ("many words", 512, {**FULL, "gradient_checkpointing": True}),
    ("sliding windows", 768, FULL),
    ("sliding windows", 768, {"packing": False}),
    ("linear attention", 768, FULL),
    ("linear attention", 768, {"packing": False}),
    ("experts", 768, FULL),
    ("experts", 768, PADDED),
    ("large vocabulary", 768, {}),
    ("large vocabulary", 768, PADDED),
    ("composite", 768, FULL),
    ("composite", 768, {"packing": False}),
]


@cache
def shape_of(name: str) -> Shape:
    config = LlamaConfig(**SHAPES[name])
    with torch.device("meta"):
        return Shape.of(config, AutoModelForCausalLM.from_config(config))


@pytest.mark.skipif(sys.platform != "linux", reason="it is measured as on Linux")
@pytest.mark.parametrize(("family", "tokens", "changes"), CASES)
@pytest.mark.slow
def test_the_prediction_is_near_the_measured_peak(
    family: str, tokens: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    lengths = {"max_seq_len": tokens // 4, "max_prompt_len": tokens // 8}
    args = {"micro_batch_tokens": tokens, **lengths, **changes}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.trainer.learning.memory.peak_of_updates"),
            *(str(tmp_path), json.dumps(FAMILIES[family]), json.dumps(args)),
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
    assert sum(found["parts"].values()) == pytest.approx(found["peak"], rel=0.15), found


@pytest.mark.parametrize(
    "changes",
    [{}, {"train_mlp": False}, {"train_unembed": True}, {"lora_target_modules": ["q_proj"]}],
)
def test_an_adapter_has_as_many_parameters_as_predicted(changes: dict[str, Any]) -> None:
    config = LlamaConfig(**{**SHAPES["wide"], "num_hidden_layers": 2})
    args = TrainerArgs(lora_rank=8, **changes)
    model = AutoModelForCausalLM.from_config(config)
    shape = Shape.of(config, model)
    adapted = with_lora(model, args)
    trained, _ = adapted.get_nb_trainable_parameters()
    assert trained_parameters(shape, args) == trained


def test_equal_models_are_counted_once_and_others_apart() -> None:
    args, found = TrainerArgs(lora_rank=8), []
    for layers in (2, 2, 3):
        config = LlamaConfig(**{**SHAPES["wide"], "num_hidden_layers": layers})
        with torch.device("meta"):
            found.append(Shape.of(config, AutoModelForCausalLM.from_config(config)).kept(args))
    assert found[0] is found[1]
    assert [len(each.layers) for each in found] == [2, 2, 3]


def test_what_is_there_beside_the_step_counts() -> None:
    shape = shape_of("deep")
    usual = predict(shape, TrainerArgs(), 1000)
    assert "reference" not in usual
    assert "key-value cache" not in usual
    args = TrainerArgs(
        kl_penalty_coef=0.1, reference_model="tiny", max_seq_len=100, max_prompt_len=50
    )
    more = predict(shape, args, 1000, Surroundings(requests=4))
    assert more["reference"] == 4 * shape.parameters
    follows = TrainerArgs(kl_penalty_coef=0.1, reference_update_steps=4, bf16=True)
    trained = trained_parameters(shape, follows)
    assert predict(shape, follows, 1000)["reference adapter"] == 2 * trained
    average = follows.model_copy(update={"reference_update_rate": 0.5})
    assert predict(shape, average, 1000)["reference adapter"] == 4 * trained
    # 4 contexts of 100 tokens; keys and values of 12 layers in float32.
    assert more["key-value cache"] == 4 * 100 * 2 * 384 * 12 * 4
    assert {name: more[name] for name in usual} == usual


TOKENS = 256
FAMILIES_OF_LAYERS = (
    "Gemma 3 (text)",
    "Qwen3.5 (text)",
    "Qwen3-MoE",
    "GLM-4-MoE",
    "LFM2",
    "Gemma 3",
)
KINDS = [
    pytest.param({"use_lora": lora, "bf16": bf16}, qwen, id=f"{lora=} {bf16=} {qwen=}")
    for lora, bf16, qwen in [(True, True, True), (True, False, False), (False, True, False)]
]


def small_policy(folder: Path, settings: dict[str, Any], *, qwen: bool = False) -> Policy:
    size = {**SHAPES["deep"], "num_hidden_layers": 2, "head_dim": 64, "vocab_size": 1024}
    config = Qwen3Config(**size) if qwen else LlamaConfig(**size)
    return policy_of(AutoModelForCausalLM.from_config(config), folder, settings)


def policy_of(model: Any, folder: Path, settings: dict[str, Any]) -> Policy:
    model.save_pretrained(folder)
    limits = {
        "micro_batch_tokens": TOKENS,
        "max_seq_len": TOKENS // 4,
        "max_prompt_len": TOKENS // 8,
    }
    return Policy(str(folder), TrainerArgs(**{**limits, **settings}))


def shape_and_samples(policy: Policy) -> tuple[Shape, list[Sample]]:
    config = policy.weights.module.config
    with torch.device("meta"):
        shape = Shape.of(config, AutoModelForCausalLM.from_config(config))
    return shape, samples(TOKENS // 4, 4, config.get_text_config().vocab_size)


def size(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors; those that share memory count once."""
    stored = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors
    }
    return sum(stored.values())


def kept_and_predicted(policy: Policy) -> tuple[int, int]:
    """Return the bytes that a micro-batch's forward pass keeps, and those that are predicted."""
    shape, batch = shape_and_samples(policy)
    own = {each.untyped_storage().data_ptr() for each in policy.model.parameters()}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.accumulate(batch)
    return size(kept), activations(shape, policy.args, TOKENS)


@pytest.mark.parametrize(("settings", "qwen"), KINDS)
def test_the_forward_pass_keeps_what_is_predicted(
    settings: dict[str, Any], qwen: bool, tmp_path: Path
) -> None:
    kept, predicted = kept_and_predicted(small_policy(tmp_path, settings, qwen=qwen))
    assert predicted == pytest.approx(kept, rel=0.1)


@pytest.mark.parametrize(
    ("family", "packing"),
    [
        pytest.param(family, packing, marks=[] if family in how else pytest.mark.slow)
        for packing, how in {
            True: ("Gemma 3 (text)", "Qwen3.5 (text)", "Qwen3-MoE", "Gemma 3"),
            False: ("Qwen3.5 (text)", "GLM-4-MoE", "LFM2"),
        }.items()
        for family in FAMILIES_OF_LAYERS
    ],
)
def test_layers_of_every_kind_keep_what_is_predicted(
    family: str, packing: bool, tmp_path: Path
) -> None:
    settings = {"use_lora": False, "packing": packing}
    kept, predicted = kept_and_predicted(policy_of(BY_NAME[family].model(), tmp_path, settings))
    assert predicted == pytest.approx(kept, rel=0.15)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_lora": False},
        {"use_lora": False, "bf16": True},
        {"use_lora": True, "bf16": True},
    ],
)
def test_weights_and_optimizer_take_what_is_predicted(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    policy = small_policy(tmp_path, settings)
    shape, batch = shape_and_samples(policy)
    policy.accumulate(batch)
    trained, found = policy.weights.trained, predict(shape, policy.args, TOKENS)
    assert found["gradients"] == size(each.grad for each in trained if each.grad is not None)
    policy.finish()
    held = size([*policy.model.parameters(), *trained])
    moments = size(
        value
        for state in policy.optimizer.state.values()
        for value in state.values()
        if value.dim() > 0
    )
    assert found["weights"] == held
    assert found["optimizer"] == moments


def test_what_is_offloaded_is_not_on_the_device() -> None:
    shape, around = shape_of("wide"), Surroundings(cuda=True)
    usual = predict(shape, TrainerArgs(use_lora=False, bf16=True), 512, around)
    assert usual["weights"] == 6 * shape.parameters
    args = TrainerArgs(use_lora=False, bf16=True, optim="adamw_offload")
    less = predict(shape, args, 512, around)
    assert less["weights"] == 2 * shape.parameters
    assert not {"gradients", "optimizer", "optimizer step"} & less.keys()


@pytest.mark.parametrize("gib", [1, 8])
def test_the_budget_that_is_found_is_the_largest_that_fits(gib: int) -> None:
    shape = shape_of("deep")
    args = TrainerArgs(micro_batch_tokens="auto", batch_size=256)
    tokens = largest_budget(shape, args, gib * 2**30)
    assert args.max_seq_len <= tokens < CEILING

    def peak(count: int) -> int:
        return sum(predict(shape, args, count).values())

    assert peak(tokens) <= gib * 2**30 < peak(tokens + 256)


def test_the_budget_that_is_found_has_bounds() -> None:
    shape = shape_of("deep")
    args = TrainerArgs(micro_batch_tokens="auto", batch_size=256)
    assert largest_budget(shape, args, 1) == args.max_seq_len
    assert CEILING - 256 < largest_budget(shape, args, 2**50) <= CEILING
    small = TrainerArgs(micro_batch_tokens="auto", batch_size=8)
    assert largest_budget(shape, small, 2**50) == 8 * small.max_seq_len
