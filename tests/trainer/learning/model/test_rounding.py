"""Layers of one kind round; the rest of the model, and its weights afterwards, do not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from vf.inference.model_files import resolve_model
from vf.traces.trace import Branch
from vf.trainer.learning.model.rounding import (
    ATTENTION,
    WHOLE,
    layer_kinds,
    logprobs,
    rounded,
    rounding_gaps,
)

TEMPERATURE = 0.8
KINDS = ["embedding", "normalisation", "attention's projections", "MLP", "head"]


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(resolve_model("tiny")).float().eval()


@pytest.fixture(scope="module")
def branches() -> list[Branch]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for sampled in (5, 12):
        prompt, answer = (torch.randint(512, (n,), generator=generator) for n in (9, sampled))
        branch = Branch()
        branch.add_context(prompt.tolist(), 0)
        branch.add_sampled(answer.tolist(), [-1.0] * sampled, [0] * sampled, 0)
        found.append(branch)
    return found


def test_every_layer_has_one_kind(model: Any) -> None:
    kinds = layer_kinds(model)
    assert sorted(kinds) == sorted(KINDS)
    layers = [layer for each in kinds.values() for layer in each]
    assert len(layers) == len(set(layers))
    assert kinds["head"] == [model.get_output_embeddings()]


@pytest.mark.parametrize("kind", [*KINDS, ATTENTION])
def test_its_own_precision_changes_nothing(model: Any, branches: list[Branch], kind: str) -> None:
    expected = logprobs(model, branches, TEMPERATURE)
    with rounded(model, kind, torch.float32):
        found = logprobs(model, branches, TEMPERATURE)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_rounded_head_is_a_product_of_rounded_factors(model: Any, branches: list[Branch]) -> None:
    ids = torch.tensor([branches[1].token_ids])
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
    weight = model.get_output_embeddings().weight.detach()
    logits = (hidden.bfloat16().double() @ weight.bfloat16().double().T).bfloat16().double()
    chosen = (logits / TEMPERATURE).log_softmax(-1)[torch.arange(8, 20), ids[0, 9:]]
    with rounded(model, "head", torch.bfloat16):
        [found] = logprobs(model, branches[1:], TEMPERATURE)
    torch.testing.assert_close(found, chosen, rtol=0, atol=0.02)  # one step of a logit, at most
    assert (found - chosen).abs().mean() < 2e-3


def test_gaps_are_of_each_kind_and_leave_the_model_alone(
    model: Any, branches: list[Branch]
) -> None:
    before = {name: each.clone() for name, each in model.state_dict().items()}
    found = rounding_gaps(model, branches, TEMPERATURE)
    assert sorted(found) == sorted([*KINDS, ATTENTION, WHOLE])
    assert found.pop("embedding").tolist() == [0.0] * 17, "its weights are stored in bfloat16"
    for gaps in found.values():
        assert gaps.shape == (17,)
        assert 0 < gaps.abs().mean() < 0.1
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_weights_are_restored_after_an_error(model: Any) -> None:
    weight = model.get_output_embeddings().weight
    before = weight.clone()
    with pytest.raises(RuntimeError), rounded(model, "head", torch.bfloat16):
        model.get_output_embeddings()(torch.zeros(3, 7))
    assert weight.dtype == torch.float32
    assert torch.equal(weight, before)
