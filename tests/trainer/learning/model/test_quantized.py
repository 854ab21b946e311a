"""What needs bitsandbytes: refused without it, and what it does where it is there."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.trainer.learning.test_policy import samples
from vf.runtime.errors import ConfigError
from vf.trainer.learning.model.quantized import check_quantized
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

EIGHT: dict[str, Any] = {"optim": "adamw_8bit", "use_lora": False}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (EIGHT, 'trainer.args.optim = "adamw_8bit" needs bitsandbytes'),
        ({"load_in_4bit": True}, "trainer.args.load_in_4bit = true needs bitsandbytes"),
    ],
)
def test_a_missing_package_is_named_with_the_command(
    args: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match="pip install 'vf-rl\\[quantized\\]'") as error:
        check_quantized(TrainerArgs(**args))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("args", "variable", "said"),
    [
        ({"optim": "adamw_offload"}, "FSDP", "fsdp_offload_params: true"),
        ({"optim": "adamw_offload"}, "DEEPSPEED", "offload_optimizer_device: cpu"),
        (EIGHT, "FSDP", 'set optim = "adamw"'),
        ({"load_in_4bit": True}, "DEEPSPEED", "leave trainer.accelerate_config out"),
    ],
)
def test_what_cannot_be_shared_among_processes_is_refused(
    args: dict[str, Any], variable: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(f"ACCELERATE_USE_{variable}", "true")
    with pytest.raises(ConfigError, match=said):
        check_quantized(TrainerArgs(**args))


def test_moments_take_8_bits_and_the_step_is_adams() -> None:
    pytest.importorskip("bitsandbytes")
    moved = []
    for optim in ("adamw", "adamw_8bit"):
        torch.manual_seed(0)
        made = Policy("tiny", TrainerArgs(use_lora=False, optim=optim, eps=1e-5))
        before = made.weights.trainable_state()
        for step in range(3):
            made.update(samples(step))
        after = made.weights.trainable_state()
        moved.append(torch.cat([(after[name] - before[name]).flatten() for name in before]))
        state = made.optimizer.state.values()
        tensors = [each for entry in state for each in entry.values() if hasattr(each, "nbytes")]
        size = sum(each.nbytes for each in tensors) / len(moved[-1])  # bytes for a parameter
        assert size < 2.5 if optim == "adamw_8bit" else size >= 8
    assert float(torch.cosine_similarity(moved[0], moved[1], dim=0)) > 0.99


def test_a_base_of_4_bits_is_small_and_its_adapter_learns() -> None:
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    made = Policy("tiny", TrainerArgs(load_in_4bit=True, bf16=True, learning_rate=1e-3))
    assert made.forward.how == "packed"
    layer = made.weights.module.model.layers[0].mlp.up_proj.base_layer
    assert layer.weight.dtype == torch.uint8
    assert layer.weight.nbytes * 2 == layer.in_features * layer.out_features
    packed = layer.weight.detach().clone()
    before = made.logprobs([1, 2, 3], [4, 5])
    assert made.update(samples()).grad_norm > 0
    assert made.logprobs([1, 2, 3], [4, 5]) != before
    assert torch.equal(layer.weight, packed)
