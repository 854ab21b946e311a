"""A reference that follows the policy: its recursion in float64, and what a checkpoint keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from vf.trainer.learning.model.reference import AdapterReference, FrozenReference, Reference
from vf.trainer.learning.sharding.copies import Copies

RATE = 0.3
IDS = torch.tensor([[1, 2, 3, 4]])


def base() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).double().eval()


def adapted() -> Any:
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"])
    return get_peft_model(base(), config).double().eval()


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def logits(model: Any, values: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if values is not None and name in values:
                parameter.copy_(values[name])
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


def of_adapter() -> tuple[Any, Reference]:
    model = adapted()
    return model, AdapterReference(model, Copies(), RATE)


def of_all_weights() -> tuple[Any, Reference]:
    model = base()
    return model, FrozenReference(base(), model, Copies(), rate=RATE)


@pytest.mark.parametrize("make", [of_adapter, of_all_weights])
def test_an_average_is_its_closed_form(make: Callable[[], tuple[Any, Reference]]) -> None:
    """ref_n = (1 − α)^n·ref_0 + Σ α·(1 − α)^(n − k)·policy_k, k = 1 ... n."""
    model, reference = make()
    visited = [trained(model)]
    with reference.active() as asked:
        torch.testing.assert_close(logits(asked), logits(base()), rtol=1e-12, atol=1e-14)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.add_(0.1 * noise)
        visited.append(trained(model))
        reference.follow()
    weights = [(1 - RATE) ** 4, *(RATE * (1 - RATE) ** (4 - k) for k in range(1, 5))]
    expected = {
        name: sum(
            (weight * each[name] for weight, each in zip(weights, visited, strict=True)),
            torch.zeros_like(visited[0][name]),
        )
        for name in visited[0]
    }
    with reference.active() as asked:
        got = logits(asked)
    torch.testing.assert_close(got, logits(model, expected), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(got, logits(model))
    for name, parameter in trained(model).items():  # the policy is as it was
        assert torch.equal(parameter, visited[-1][name])


def test_an_average_in_bfloat16_keeps_its_small_steps() -> None:
    model = adapted().bfloat16()
    reference = AdapterReference(model, Copies(), 1e-3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.fill_(1.0)
    reference.follow()
    began = reference.state()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.fill_(2.0)
    reference.follow()
    ended = reference.state()
    assert began is not None
    assert ended is not None
    for name in began:
        if "lora_A" in name:  # 1e-3 · (2 − x) is below what bfloat16 keeps of numbers near 1
            expected = began[name] + 1e-3 * (2.0 - began[name])
            torch.testing.assert_close(ended[name], expected, rtol=1e-6, atol=0.0)
