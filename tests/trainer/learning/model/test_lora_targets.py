"""What LoRA adapts by default, on random models of families of every kind, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.inference.tiny_serving import generate_all, plain_logprobs, running_engine
from tests.trainer.learning.families import BY_NAME
from tests.trainer.learning.test_policy import samples
from vf.inference.model import Sampling
from vf.inference.model_files import Checkpoint
from vf.runtime.errors import ConfigError
from vf.trainer.learning.model.building import with_lora
from vf.trainer.learning.model.lora_targets import linear_layers, lora_targets
from vf.trainer.learning.policy import Policy
from vf.trainer.saving.merging import merge
from vf.trainer.settings.config import TrainerArgs

IDS = torch.arange(40, 64)[None]
ARGS = TrainerArgs(lora_rank=4)
QKVO = "attention (q_proj, k_proj, v_proj, o_proj)"
EXPERTS = "experts (gate_up_proj, down_proj)"
DENSE = "MLP (gate_proj, up_proj, down_proj)"
LINEAR = "out_proj, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a"
ROUTED = {
    "Qwen3-MoE": [QKVO, EXPERTS],
    "Mixtral": [QKVO, EXPERTS],
    "MiniMax-M2": [QKVO, EXPERTS],
    "Phi-MoE": [QKVO, EXPERTS],
    "gpt-oss": [QKVO, EXPERTS],
    "Llama 4 (text)": [QKVO, DENSE, EXPERTS],
    "Qwen3.5-MoE (text)": [
        f"attention ({LINEAR}, q_proj, k_proj, v_proj, o_proj)",
        EXPERTS,
        DENSE,
    ],
    "GLM-4-MoE": [QKVO, DENSE, EXPERTS],
    "Nemotron 3": [
        QKVO,
        "MLP (in_proj, up_proj, down_proj)",
        "experts (up_proj, down_proj)",
    ],
}
COMPOSITE = ["Gemma 3", "Gemma 4", "Gemma 4 MoE"]
# What an adapted parameter's name has in it, beside the layers' own.
FROZEN = ("vision", "router", ".gate.", "shared_expert_gate", "embed")


def logprobs(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)
    return found


def exact(model: Any) -> Any:
    """Compute in float64, which the kernels for experts do not have."""
    model.set_experts_implementation("eager")
    return model.double()


def step(model: Any) -> dict[str, torch.Tensor]:
    """Take two steps along the gradient: the first moves B, the second A; return the gradient."""
    for _ in range(2):
        model.zero_grad()
        torch.autograd.backward(-logprobs(model)[0, :-1].gather(1, IDS[0, 1:, None]).mean())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-0.5)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", [*ROUTED, *COMPOSITE])
def test_text_is_adapted_with_its_experts_and_nothing_else(name: str, tmp_path: Path) -> None:
    base = exact(BY_NAME[name].model())
    base.save_pretrained(tmp_path / "base")
    before = {key: tensor.clone() for key, tensor in base.state_dict().items()}
    expected = logprobs(base).detach()
    targets = lora_targets(base, ARGS)
    model = with_lora(base, ARGS)
    trained = [key for key, p in model.named_parameters() if p.requires_grad]
    assert not [key for key in trained if any(part in key for part in FROZEN)]
    assert targets.trained == model.get_nb_trainable_parameters()[0]
    if name in ROUTED:
        assert list(targets.parts) == ROUTED[name]
        assert targets.describe().startswith(", ".join(ROUTED[name]) + "; router left alone; ")
    assert torch.equal(logprobs(model), expected)

    assert step(model).keys() == set(trained), "the gradient does not reach all that is trained"
    after = logprobs(model).detach()
    assert (after - expected).abs().max() > 0.05
    for key, tensor in model.get_base_model().state_dict().items():
        if ".lora_" not in key:
            assert torch.equal(tensor, before[key.replace(".base_layer", "")]), key
    with model.disable_adapter():
        assert torch.equal(logprobs(model), expected)

    model.save_pretrained(tmp_path / "adapter")
    assert all(".lora_" in key for key in load_file(tmp_path / "adapter/adapter_model.safetensors"))
    merged, _ = merge(tmp_path / "adapter", str(tmp_path / "base"), torch.float64)
    # Norms and rotary positions still compute in float32: 1e-6 to 3e-6.
    assert (logprobs(exact(merged.eval())) - after).abs().max() < 2e-5


def test_a_state_space_mixer_keeps_what_its_kernels_read() -> None:
    model = BY_NAME["Falcon-H1"].model()
    [said] = [part for part in lora_targets(model, ARGS).parts if part.startswith("MLP")]
    assert said == "MLP (gate_proj, up_proj, down_proj, in_proj)"
    with_lora(model, ARGS)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"train_mlp": False}, [QKVO]),
        ({"train_attn": False}, [EXPERTS]),
        ({"train_attn": False, "train_mlp": False, "train_unembed": True}, ["head (lm_head)"]),
    ],
)
def test_experts_count_with_the_mlp(changes: dict[str, Any], parts: list[str]) -> None:
    args = TrainerArgs(lora_rank=4, **changes)
    assert list(lora_targets(BY_NAME["Qwen3-MoE"].model(), args).parts) == parts


def test_what_settings_name_is_taken_as_it_is() -> None:
    args = TrainerArgs(lora_target_modules=["q_proj"], lora_target_parameters=["experts.down_proj"])
    model = with_lora(BY_NAME["Mixtral"].model(), args)
    adapted = {
        name.split(".lora_")[0].rpartition("layers.")[2].partition(".")[2]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert adapted == {"self_attn.q_proj", "mlp.experts"}

    args = TrainerArgs(lora_target_parameters=["experts.w1"])
    with pytest.raises(ConfigError, match=r"lora_target_parameters: .* no parameter 'experts\.w1'"):
        with_lora(BY_NAME["Mixtral"].model(), args)


@pytest.mark.parametrize(
    ("family", "names", "error"),
    [
        ("Qwen3", ["q_proj", "v_porj"], r"no layer 'v_porj', .* Did you mean 'v_proj'"),
        ("MiniMax-M2", ["q_proj", "w1", "w2"], r"no layer 'w1', .*parameters: experts\.down_proj"),
    ],
)
def test_a_name_that_matches_no_layer_is_refused(family: str, names: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        lora_targets(BY_NAME[family].model(), TrainerArgs(lora_target_modules=names))


def test_dropout_before_experts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.args\.lora_dropout = 0\.1: .*experts"):
        with_lora(BY_NAME["Qwen3-MoE"].model(), TrainerArgs(lora_dropout=0.1))


def test_the_embedded_engine_samples_with_adapted_experts() -> None:
    model = with_lora(BY_NAME["Qwen3-MoE"].model().float(), ARGS).eval()
    model.get_base_model().set_attn_implementation("sdpa")
    prompt, request = [5, 9, 40, 7], Sampling(12, seed=2)
    with running_engine(model.get_base_model()) as engine:
        generate_all(engine, [(prompt, request)], [])
        with engine.paused(), torch.no_grad():
            for name, parameter in model.named_parameters():
                if "experts" in name and "lora_B" in name:
                    parameter.normal_(std=0.3)
        engine.publish(1)
        [found] = generate_all(engine, [(prompt, request)], [])
        plain = plain_logprobs(engine, prompt, found.token_ids, model=model)
        assert found.logprobs == pytest.approx(plain, abs=2e-5)
        with model.disable_adapter():
            without = plain_logprobs(engine, prompt, found.token_ids, model=model)
    assert max(abs(a - b) for a, b in zip(plain, without, strict=True)) > 0.05


@pytest.mark.parametrize("bf16", [False, True])
def test_a_policy_trains_experts_against_its_base(bf16: bool, tmp_path: Path) -> None:
    BY_NAME["Qwen3-MoE"].model(vocab_size=512).save_pretrained(tmp_path / "base")
    args = TrainerArgs(
        lora_rank=4, kl_penalty_coef=0.1, learning_rate=0.02, max_seq_len=64, max_prompt_len=32,
        bf16=bf16,
    )  # fmt: skip
    policy = Policy(str(tmp_path / "base"), args)
    prompt, answer = [5, 9, 40, 7], [11, 300, 2]
    first = policy.logprobs(prompt, answer)
    stats = [policy.update(samples()) for _ in range(3)]
    assert stats[0].kl_reference_v3 == pytest.approx(0.0, abs=1e-6)
    assert stats[-1].kl_reference_v3 > 1e-4
    state = policy.weights.trainable_state()
    moved = [name for name, tensor in state.items() if "experts" in name and "lora_B" in name]
    assert all(bool(state[name].any()) for name in moved)
    assert len(moved) == 4, "two tensors in each of two layers"

    policy.weights.save(tmp_path / "adapter")
    again = Checkpoint.find(str(tmp_path / "adapter"))
    assert again.base == str(tmp_path / "base")
    trained = policy.logprobs(prompt, answer)
    assert max(abs(a - b) for a, b in zip(first, trained, strict=True)) > 0.01
    if not bf16:
        ids = torch.tensor([prompt + answer])
        rows = again.load()(ids).logits[0, 3:-1].log_softmax(-1)
        assert rows.gather(1, ids[0, 4:, None])[:, 0].tolist() == pytest.approx(trained, abs=1e-4)
    policy.weights.load_trainable_state({name: 0 * tensor for name, tensor in state.items()})
    assert policy.logprobs(prompt, answer) == pytest.approx(first, abs=1e-6)


def test_the_layers_of_a_kind_are_named_and_experts_in_one_tensor_are_refused() -> None:
    model = BY_NAME["Qwen3-MoE"].model()
    kinds = {"attention": True, "mlp": False, "head": True}
    names = linear_layers(model, **kinds)
    assert names[-1] == "lm_head"
    assert {name.rpartition(".")[2] for name in names[:-1]} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    }
    with pytest.raises(ConfigError, match=r"train_mlp: the experts of .* are one tensor per layer"):
        linear_layers(model, **kinds | {"mlp": True})
