"""An update computes what the engine sampled from, unless dropout is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.learning.families import BY_NAME
from tests.trainer.learning.losses.test_losses_update import shake
from tests.trainer.learning.model.test_self_test import make
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

ADAPTED: dict[str, Any] = {"lora_target_modules": ["q_proj", "v_proj"]}
MODELS: dict[str, Any] = {
    # In layers of their own,
    "GPT2": lambda: make("GPT2", n_embd=32, n_layer=2, n_head=4),
    # in the attention's function,
    "Llama": lambda: make("Llama", attention_dropout=0.1),
    # in functions of a layer that gradient checkpointing wants in training mode,
    "OPT": lambda: make("OPT", word_embed_proj_dim=32, ffn_dim=48, dropout=0.1),
    # and noise of routers, with experts that are drawn.
    "Phi-MoE": lambda: BY_NAME["Phi-MoE"].model(input_jitter_noise=0.1),
}


def policy(name: str, folder: Path, **settings: Any) -> Policy:
    MODELS[name]().save_pretrained(folder)
    torch.manual_seed(0)
    limits: Any = {"max_seq_len": 64, "max_prompt_len": 20, "micro_batch_tokens": 300}
    return Policy(str(folder), TrainerArgs(**limits | {"use_lora": False} | settings))


def sampled(policy: Policy) -> list[Sample]:
    """Return samples with the policy's own log-probabilities."""
    made = []
    for row in range(4):
        prompt, ids = [7, 8, 9, 10 + row], list(range(20 + row, 40))
        branch = Branch()
        branch.add_context(prompt, 0)
        branch.add_sampled(ids, policy.logprobs(prompt, ids), [0] * len(ids), 0)
        made.append(Sample(branch, (-1.0) ** row))
    return made


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_ratios_on_policy_are_one(name: str, gradient_checkpointing: bool, tmp_path: Path) -> None:
    made = policy(name, tmp_path, gradient_checkpointing=gradient_checkpointing)
    assert made.update(sampled(made)).kl_v3 < 1e-8


def test_dropout_that_is_asked_for_is_there(tmp_path: Path) -> None:
    made = policy("GPT2", tmp_path, disable_dropout=False)
    assert made.update(sampled(made)).kl_v3 > 1e-3
    with torch.no_grad():  # and not where the engine samples
        first, second = sampled(made), sampled(made)
    assert [each.branch.logprobs for each in first] == [each.branch.logprobs for each in second]


def test_the_adapters_dropout_is_a_setting_of_its_own(tmp_path: Path) -> None:
    settings = {"use_lora": True, "gradient_checkpointing": True, **ADAPTED}
    for lora_dropout in (0.0, 0.5):
        made = policy("Llama", tmp_path, **settings, lora_dropout=lora_dropout)
        shake(made)
        assert (made.update(sampled(made)).kl_v3 > 1e-6) == (lora_dropout > 0)
