"""Small steps add up in float32, and a resumed policy continues to the last bit."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.trainer.learning.test_policy import samples
from vf.inference.model_files import resolve_model
from vf.runtime.errors import ConfigError
from vf.trainer.learning.policy import Policy
from vf.trainer.saving.checkpoint import Progress, load_checkpoint, save_checkpoint
from vf.trainer.settings.config import TrainerArgs


def policy(seed: int = 0, **args: Any) -> Policy:
    torch.manual_seed(seed)
    return Policy("tiny", TrainerArgs(**{"bf16": True, **args}))


def copies(policy: Policy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.model.parameters()]


@pytest.mark.parametrize("use_lora", [True, False])
def test_the_module_holds_the_masters_rounded(use_lora: bool) -> None:
    made = policy(use_lora=use_lora, learning_rate=1e-3)
    before = made.weights.trainable_state()
    made.update(samples())
    held = dict(made.model.named_parameters())
    assert {parameter.dtype for parameter in held.values()} == {torch.bfloat16}
    state = made.weights.trainable_state()
    assert any(not torch.equal(state[name], before[name]) for name in state)
    for name, master in state.items():
        assert master.dtype == torch.float32
        assert torch.equal(held[name], master.bfloat16())
    moments = made.optimizer.state[made.weights.trained[0]]
    assert {moments["exp_avg"].dtype, moments["exp_avg_sq"].dtype} == {torch.float32}


@pytest.mark.parametrize("use_lora", [True, False])
def test_what_nobody_needs_any_more_is_freed(use_lora: bool) -> None:
    made = policy(use_lora=use_lora)
    made.update(samples())
    held = [weakref.ref(each) for each in (*made.model.parameters(), *made.weights.trained)]
    del made
    gc.collect()
    assert [each() for each in held if each() is not None] == []


def test_steps_below_the_rounding_of_a_weight_add_up() -> None:
    """One Adam step of 4e-5 moves no weight above 0.02 in bfloat16, ten of them do."""
    made = policy(use_lora=False, learning_rate=4e-5)
    large = made.weights.module.model.layers[0].mlp.up_proj.weight
    where = large.abs() > 0.02
    begin = large.detach().clone()
    for count in range(1, 11):
        made.update(samples(0, 2))
        if count == 1:
            assert torch.equal(large[where], begin[where])
    assert (large[where] != begin[where]).float().mean() > 0.5


@pytest.mark.parametrize(
    "args",
    [
        {},
        pytest.param({"use_lora": False}, marks=pytest.mark.slow),
        {"use_lora": False, "optim": "adamw_offload"},
        pytest.param(
            {"use_lora": False, "optim": "adamw_offload", "bf16": False}, marks=pytest.mark.slow
        ),
        {"use_lora": False, "optim": "adamw_8bit"},
        {"load_in_4bit": True, "optim": "adamw_8bit"},
        {"load_in_4bit": True, "bf16": False},
    ],
    ids=str,
)
def test_a_resumed_policy_continues_to_the_last_bit(args: dict[str, Any], tmp_path: Path) -> None:
    if args.get("load_in_4bit") or args.get("optim") == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    unbroken = policy(**args)
    for step in range(2):
        unbroken.update(samples(step))
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    saved = save_checkpoint(tmp_path, unbroken, tokenizer, Progress(2, 0.0))
    resumed = policy(seed=1, **args)
    load_checkpoint(saved, resumed)
    for step in range(2, 4):
        assert resumed.update(samples(step)) == unbroken.update(samples(step))
    for mine, theirs in zip(copies(resumed), copies(unbroken), strict=True):
        assert torch.equal(mine, theirs)
    state = resumed.weights.trainable_state()
    for name, value in unbroken.weights.trainable_state().items():
        assert torch.equal(state[name], value)


def test_moments_of_another_kind_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    eight, plain = policy(optim="adamw_8bit"), policy()
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    for step, (made, other) in enumerate(((eight, plain), (plain, eight))):
        made.update(samples())
        saved = save_checkpoint(tmp_path, made, tokenizer, Progress(step, 0.0))
        with pytest.raises(ConfigError, match="set it as the run began"):
            load_checkpoint(saved, other)


def test_offloading_steps_as_without() -> None:
    states = []
    for optim in ("adamw", "adamw_offload"):
        made = policy(use_lora=False, bf16=False, optim=optim, eps=1e-5)
        for step in range(3):
            made.update(samples(step))
        states.append(made.weights.trainable_state())
        own = {parameter.data_ptr() for parameter in made.model.parameters()}
        apart = {master.data_ptr() for master in made.weights.trained} - own
        assert bool(apart) == (optim == "adamw_offload")
    for name, parameter in states[0].items():
        torch.testing.assert_close(states[1][name], parameter, rtol=1e-5, atol=1e-6)
