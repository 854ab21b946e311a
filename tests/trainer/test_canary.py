"""The adapter is tried in the engine part by part: what it leaves out is found before a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.inference.vllm.published_adapters import adapted
from tests.trainer.learning.families import BY_NAME
from vf.inference.model_files import resolve_model
from vf.runtime.errors import ConfigError
from vf.trainer.canary import Probed, adapted_kinds, try_adapter
from vf.trainer.learning.policy import Policy
from vf.trainer.run.setup import ProbePrompt
from vf.trainer.settings.config import TrainerArgs

PROMPT = [*range(5, 40)]
TOLERANCE = 0.05
Spoil = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]
GATE = [pytest.mark.slow, pytest.mark.gate]
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Server:
    """An engine that reads each adapter from the disk, perhaps not all of it."""

    def __init__(self, policy: Policy, folder: Path, spoil: Spoil | None, *, late: bool) -> None:
        self.policy, self.folder, self.spoil, self.late = policy, folder, spoil, late
        self.published: list[Path] = []
        self.model = AutoModelForCausalLM.from_pretrained(
            resolve_model("tiny"), dtype=torch.float32
        )
        self.base = {name: value.clone() for name, value in self.model.state_dict().items()}

    def apply(self, folder: Path) -> None:
        """Add an adapter's products to the weights: ``W + alpha/r · B·A``."""
        config = json.loads((folder / "adapter_config.json").read_text())
        weights = load_file(next(folder.glob("*.safetensors")))
        added = dict(self.base)
        for name, first in weights.items():
            if ".lora_A." in name:
                second = weights[name.replace(".lora_A.", ".lora_B.")]
                layer = name.removeprefix("base_model.model.").replace(".lora_A", "")
                added[layer] = (
                    self.base[layer] + config["lora_alpha"] / config["r"] * second @ first
                )
        self.model.load_state_dict(added)

    def publish(self) -> Probed:
        """Load the adapter, sample greedily, and compare with the trainer."""
        folder = self.folder / str(len(self.published))
        self.policy.weights.save(folder)
        config_file, weights_file = (
            folder / "adapter_config.json",
            next(folder.glob("*.safetensors")),
        )
        config, weights = json.loads(config_file.read_text()), load_file(weights_file)
        if self.spoil is not None:
            self.spoil(config, weights)
        config_file.write_text(json.dumps(config))
        save_file(weights, weights_file)
        self.published.append(folder)
        served = self.published[-2:][0] if self.late else folder
        self.apply(served)
        ids, logprobs = [*PROMPT], []
        with torch.no_grad():
            for _ in range(4):
                scores = self.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
                ids.append(int(scores.argmax()))
                logprobs.append(float(scores[ids[-1]]))
        sampled = ids[len(PROMPT) :]
        mine = self.policy.logprobs(PROMPT, sampled)
        gap = fmean(abs(q - p) for q, p in zip(logprobs, mine, strict=True))
        return Probed(gap, tuple(sampled))


def tried(tmp_path: Path, spoil: Spoil | None = None, *, late: bool = False) -> list[str]:
    """Try the adapter of the tiny model in such a server; return what was said."""
    torch.manual_seed(0)
    policy = Policy("tiny", TrainerArgs(lora_rank=4, train_mlp=True))
    server, said = Server(policy, tmp_path, spoil, late=late), list[str]()
    first = server.publish()
    assert first.gap < 1e-4
    try:
        try_adapter(
            policy,
            ProbePrompt(PROMPT),
            first.token_ids,
            server.publish,
            nullcontext,
            tolerance=TOLERANCE,
            say=said.append,
        )
    finally:
        for factors in adapted_kinds(policy.model).values():
            assert not any(bool(factor.any()) for factor in factors), "the adapter is as it was"
    return said


def ignore(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    for tensor in weights.values():
        tensor.zero_()


def drop_up(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    for name, tensor in weights.items():
        if ".up_proj.lora_B" in name:
            tensor.zero_()


def double(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    config["lora_alpha"] *= 2


def test_an_engine_that_applies_all_is_taken(tmp_path: Path) -> None:
    said = tried(tmp_path)
    assert [line.split(": ")[1].split()[0] for line in said] == sorted(ALL, key=ALL.index)
    assert said[0].endswith(f"(1 of {len(ALL)})")


@pytest.mark.parametrize(
    ("spoil", "late", "words"),
    [
        pytest.param(ignore, False, "does not sample with the adapter", marks=GATE),
        pytest.param(double, False, "the adapter.*q_proj", marks=GATE),
        pytest.param(None, True, "does not sample with the adapter", marks=GATE),
        (drop_up, False, r"not apply a part of the adapter.*: up_proj \("),
    ],
)
def test_an_engine_that_does_not_is_refused(
    tmp_path: Path, spoil: Spoil | None, late: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        tried(tmp_path, spoil, late=late)
    if spoil is drop_up:
        kept = [kind for kind in ALL if kind != "up_proj"]
        assert f"lora_target_modules = {kept}" in str(caught.value)


def test_experts_are_tried_by_the_names_of_their_tensors(tmp_path: Path) -> None:
    kinds = adapted_kinds(adapted(BY_NAME["Mixtral"], tmp_path))
    assert kinds.keys() == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "experts.gate_up_proj", "experts.down_proj")
    }
    assert {len(factors) for factors in kinds.values()} == {2}
