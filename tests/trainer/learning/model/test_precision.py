"""bfloat16 gives the gradient of float32 up to rounding, and float32 where that matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.learning.losses.test_losses_update import gradients
from tests.trainer.learning.model.test_self_test import make
from tests.trainer.learning.test_policy import samples
from vf.inference.model_files import load_module
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.model.building import build_model
from vf.trainer.learning.model.precision import allow_tf32
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

Gradient = dict[str, torch.Tensor]

ROUNDING = 2.0**-9  # most that one rounding to 8 significant bits changes a number, relatively
# The two layers round some 16 times each, forward and backward. As errors are independent, that is
# 8 roundings, and the weights here, far from uniform, may double it; processors that multiply in
# bfloat16 differ from those that do not by some more.
EXPLAINED = 20 * ROUNDING

NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {},
    "Gemma": {},
    "Granite": {"logits_scaling": 4.0},
    "OPT": {"word_embed_proj_dim": 32, "ffn_dim": 48, "dropout": 0.0},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, **NO_DROPOUT},
}
SIZES: dict[str, Any] = {
    "max_seq_len": 32,
    "max_prompt_len": 16,
    "micro_batch_tokens": 64,
    "max_grad_norm": 1e9,
}


def logprobs(model: Any, sample: Sample) -> torch.Tensor:
    """Return log p of the trained tokens, in the precision of the logits but at least float32."""
    ids, mask = torch.tensor([sample.branch.token_ids]), sample.branch.loss_mask[1:]
    logits = model(input_ids=ids).logits[0, :-1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    found: torch.Tensor = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return found[torch.tensor(mask, dtype=torch.bool)]


def by_hand(model: Any, batch: list[Sample]) -> Gradient:
    """Return the gradient of −mean(ratio·A), with a backward pass for each sample."""
    total = sum(sum(sample.branch.loss_mask) for sample in batch)
    for sample in batch:
        sampled = torch.tensor([q for q in sample.branch.logprobs if q])
        ratios = (logprobs(model, sample) - sampled).exp()
        torch.autograd.backward(-ratios.sum() * sample.advantage / total)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def distance(found: Gradient, expected: Gradient) -> float:
    """Return how far two whole gradients are apart, relative to the second."""
    assert found.keys() == expected.keys()
    gaps = [(found[name].double() - expected[name].double()).norm() for name in expected]
    norms = [each.double().norm() for each in expected.values()]
    return float(torch.stack(gaps).norm() / torch.stack(norms).norm())


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[] if name in ("Llama", "Granite", "GPT2") else pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_the_gradient_is_float32s_within_the_rounding(family: str, tmp_path: Path) -> None:
    make(family, **FAMILIES[family]).bfloat16().save_pretrained(tmp_path)
    exact = load_module(str(tmp_path), torch.float64).eval()
    batch = samples(0, 12)
    for sample in batch:  # as if it had been sampled from the model
        ours = iter(logprobs(exact, sample).tolist())
        sample.branch.logprobs = [next(ours) if m else 0.0 for m in sample.branch.loss_mask]
    expected = by_hand(exact, batch)

    low = Policy(str(tmp_path), TrainerArgs(use_lora=False, bf16=True, **SIZES))
    assert low.forward.how != "padded"
    error = distance(gradients(low, batch), expected)
    plain = distance(by_hand(load_module(str(tmp_path), torch.bfloat16).eval(), batch), expected)
    assert error <= EXPLAINED
    assert error <= 1.02 * plain, "no worse than transformers in bfloat16"

    full = Policy(str(tmp_path), TrainerArgs(use_lora=False, bf16=False, **SIZES))
    assert distance(gradients(full, batch), expected) <= 1e-5


@pytest.mark.slow
def test_many_micro_batches_add_up_in_float32() -> None:
    """512 equal ones make the gradient of one; their sum in bfloat16 stops to grow on the way."""
    [one] = samples(0, 1)
    args = TrainerArgs(use_lora=False, bf16=True, micro_batch_size=1, learning_rate=1e-12, **SIZES)
    policy = Policy("tiny", args)
    alone = gradients(policy, [one])
    many = gradients(policy, [one] * 512)
    rounded = {name: torch.zeros_like(gradient).bfloat16() for name, gradient in alone.items()}
    for _ in range(512):
        for name, total in rounded.items():
            total.add_(alone[name].bfloat16())
    mean = {name: total.double() / 512 for name, total in rounded.items()}
    assert distance(mean, alone) > 0.3
    assert distance(many, alone) < 1e-5
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_an_adapter_computes_in_bfloat16_and_keeps_less() -> None:
    """Were the adapter in float32, each matrix would keep its input in it, as the norms do."""
    kept = {}
    [batch] = pack(samples(0, 8), 10**6, share=False)
    for bf16 in (False, True):
        policy = Policy("tiny", TrainerArgs(bf16=bf16, **SIZES))
        held = {each.untyped_storage().data_ptr() for each in policy.model.parameters()}
        sizes: dict[int, int] = {}

        def note(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with policy.forward.active(), hooks:
            alive = policy.forward(batch, 1.0)
        kept[bf16] = sum(size for place, size in sizes.items() if place not in held)
        del alive
    assert kept[True] < 0.8 * kept[False]


def test_logits_are_float32_for_whoever_runs_the_module() -> None:
    model = build_model("tiny", TrainerArgs(use_lora=False, bf16=True)).eval()
    ids = torch.arange(10, 30)[None]
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids).last_hidden_state
        expected = hidden.float() @ model.get_output_embeddings().weight.float().T
        torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-6, atol=1e-6)
    assert hidden.dtype == torch.bfloat16


@pytest.mark.parametrize("padding", [None, 7])
def test_the_gradient_of_a_frequent_token_is_a_whole_sum(
    padding: int | None, tmp_path: Path
) -> None:
    """Beyond 256 equal terms, a sum in bfloat16 would not grow."""
    make("Llama", pad_token_id=padding).save_pretrained(tmp_path)
    low = build_model(str(tmp_path), TrainerArgs(use_lora=False, bf16=True))
    embedding = low.get_input_embeddings()
    assert embedding.padding_idx == padding
    ids = torch.tensor([[7, 7, 3] * 1024, [5, 5, 5] * 1024])
    embedding(ids).sum().backward()
    found = embedding.weight.grad[[3, 5, 7, 8], 0].tolist()
    assert found == [1024.0, 3072.0, 0.0 if padding else 2048.0, 0.0]


def test_tf32_is_for_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    model = make("Llama")
    allow_tf32(torch.device("cpu"), TrainerArgs(bf16=False), model)
    allow_tf32(torch.device("cuda"), TrainerArgs(bf16=True), model)
    assert asked == []
    allow_tf32(torch.device("cuda"), TrainerArgs(bf16=False), model)
    assert asked == ["high"]
    model(input_ids=torch.arange(8)[None])
    assert asked == ["high", "highest", "high"], "angles of positions stay exact"
