"""Each model gets the fastest way that is exact on it, and a note where that is not the first."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
import torch
import transformers

from tests.trainer.learning.forked_samples import forked_samples
from vf.runtime.errors import TrainingError
from vf.trainer.learning.attention import kernels, tree_attention
from vf.trainer.learning.attention.kernel_calls import AnyCall, segment_calls
from vf.trainer.learning.attention.prefix_tree import Segment
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.model.forward import Forward, token_logprobs
from vf.trainer.learning.model.self_test import choose_forward
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


def make(family: str, **changes: Any) -> Any:
    """Return a random model of a family, on sdpa as the library loads them."""
    torch.manual_seed(0)
    named = {name: value for name, value in {**SMALL, **changes}.items() if value is not None}
    config = getattr(transformers, f"{family}Config")(**named)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with torch.no_grad():  # far from uniform, so that attention shows
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model.eval()


def check(forward: Forward) -> None:
    """Compare whole micro-batches with padded rows."""
    batch = forked_samples(0, groups=1)
    (micro,) = pack(batch, 10**6)
    with torch.no_grad():
        expected, entropy, *_ = token_logprobs(forward.model, micro, 0.9)
        with forward.active():
            found, found_entropy, *_ = forward(micro, 0.9)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_entropy, entropy, rtol=1e-4, atol=1e-4)


MODELS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "Llama": (lambda: make("Llama"), "packed", ""),
    "Qwen3": (lambda: make("Qwen3"), "packed", ""),
    "Gemma": (lambda: make("Gemma"), "packed", ""),
    "GPT2, learned positions": (
        lambda: make("GPT2", n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0),
        "packed",
        "",
    ),
    "GPT2, dropout in the attention": (
        lambda: make("GPT2", n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.1),
        "padded",
        "dropout in its attention",
    ),
    "Mistral, a wide window": (lambda: make("Mistral", sliding_window=128), "packed", ""),
    "Mistral, a narrow window": (
        lambda: make("Mistral", sliding_window=16),
        "packed",
        "",
    ),
    "Granite, logits scaled": (
        lambda: make("Granite", logits_scaling=4.0),
        "packed",
        "",
    ),
    "Gemma3, logits capped": (
        lambda: make("Gemma3Text", final_logit_softcapping=2.0),
        "packed",
        "",
    ),
    "Lfm2, convolutions": (
        lambda: make("Lfm2", layer_types=["conv", "full_attention"]),
        "packed",
        "",
    ),
    "OPT, positions of its own": (
        lambda: make("OPT", word_embed_proj_dim=32, ffn_dim=48, dropout=0.0),
        "packed",
        "",
    ),
    "Falcon, positions in a bias": (
        lambda: make("Falcon", alibi=True, head_dim=None),
        "padded",
        "cannot be trained packed",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gets_the_fastest_way_that_is_exact(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    build, how, said = MODELS[name]
    model = build()
    with caplog.at_level(logging.WARNING, logger="vf"):
        forward = choose_forward(model, 100)
    assert forward.how == how, caplog.text
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("vf.")]
    assert bool(ours) == bool(said)
    assert said in "".join(ours)
    if how != "padded":
        check(forward)


def test_low_precision_is_distinguished_from_wrong_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounding moves log-probabilities by more than float32's tolerance."""
    window = {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 0}
    model = make("Qwen3", num_hidden_layers=4, **window).bfloat16()
    assert choose_forward(model, 100).how == "packed"

    def whole_past(segments: tuple[Segment, ...], *_: object) -> tuple[AnyCall, ...]:
        return segment_calls(segments, model.config.num_key_value_heads, model.device)

    monkeypatch.setattr(tree_attention, "block_calls", whole_past)
    assert choose_forward(model, 100).how == "padded"


def test_a_kernel_that_is_wrong_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both in the values and in the gradients, which log-probabilities do not show."""
    right = kernels.fused_backward

    def wrong(*args: Any) -> tuple[torch.Tensor, ...]:
        dq, dk, dv = right(*args)
        return dq, dk * 1.01, dv

    monkeypatch.setattr(tree_attention, "fused_backward", wrong)
    assert choose_forward(make("Llama"), 100).how == "padded"
    assert "the attention's kernel is off by" in caplog.text


def test_the_models_own_attention_is_back_after_use_and_after_an_error() -> None:
    model = make("Llama")
    forward = choose_forward(model, 100)
    assert model.config._attn_implementation == "sdpa"
    with suppress(KeyError), forward.active():
        assert model.config._attn_implementation == tree_attention.NAME
        raise KeyError
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_cannot_be_packed_is_trained_padded(
    tmp_path: Any,
) -> None:
    make("Falcon", alibi=True, head_dim=None).save_pretrained(tmp_path)
    limits: Any = {"max_seq_len": 150, "max_prompt_len": 100, "micro_batch_tokens": 300}
    policy = Policy(str(tmp_path), TrainerArgs(**limits, use_lora=False))
    stats = policy.update(forked_samples(0))
    assert policy.forward.how == "padded"
    assert stats.computed_tokens > stats.processed_tokens
    assert stats.grad_norm > 0


def test_a_reference_of_another_kind_goes_its_own_way(tmp_path: Any) -> None:
    make("Granite", logits_scaling=4.0).save_pretrained(tmp_path)
    limits: Any = {"max_seq_len": 150, "max_prompt_len": 100, "micro_batch_tokens": 300}
    found = []
    for packing in (True, False):
        torch.manual_seed(0)
        args = TrainerArgs(
            **limits, kl_penalty_coef=0.1, reference_model=str(tmp_path), packing=packing
        )
        found.append(Policy("tiny", args).update(forked_samples(0)))
    assert found[0].kl_reference_v3 == pytest.approx(found[1].kl_reference_v3, rel=1e-4)
    assert found[0].kl_reference_v3 > 0.1
    assert found[0].computed_tokens < found[1].computed_tokens


def long_and_short() -> list[Sample]:
    batch = forked_samples(6, groups=2, rollouts=4)
    assert min(map(len, batch)) < 30 < max(map(len, batch))
    return batch


@pytest.mark.parametrize("what", ["drop", "truncate"])
def test_sequences_that_are_too_long_are_counted(
    what: Any, caplog: pytest.LogCaptureFixture
) -> None:
    args = TrainerArgs(max_seq_len=30, max_prompt_len=20, long_sequences=what)
    batch = long_and_short()
    stats = Policy("tiny", args).update(batch)
    assert stats.too_long == sum(len(sample) > 30 for sample in batch)
    kept = [sample.branch.loss_mask[1:30] for sample in batch]
    if what == "drop":
        kept = [mask for mask, each in zip(kept, batch, strict=True) if len(each) <= 30]
    assert stats.tokens == sum(map(sum, kept))
    assert f"{stats.too_long} of {len(batch)} sequences are longer" in caplog.text


def test_sequences_that_are_too_long_can_end_the_run() -> None:
    args = TrainerArgs(max_seq_len=30, max_prompt_len=20, long_sequences="refuse")
    policy = Policy("tiny", args)
    before = policy.weights.trainable_state()
    with pytest.raises(TrainingError, match=r"longer than max_seq_len = 30.*long_sequences"):
        policy.update(long_and_short())
    after = policy.weights.trainable_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_step_of_which_nothing_is_left_changes_nothing() -> None:
    policy = Policy("tiny", TrainerArgs(max_seq_len=5, max_prompt_len=4))
    batch = [sample for sample in long_and_short() if len(sample) > 5]
    before = policy.weights.trainable_state()
    stats = policy.update(batch)
    after = policy.weights.trainable_state()
    assert (stats.tokens, stats.too_long, stats.loss) == (0, len(batch), 0.0)
    assert all(torch.equal(before[name], after[name]) for name in before)
    values = [getattr(stats, field.name) for field in fields(stats)]
    assert all(value == value for value in values)  # no NaN in the metrics
