"""vLLM's own models take the adapter of every family as it is published, weight by weight."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.inference.vllm.published_adapters import adapted, publish
from tests.trainer.learning.families import BY_NAME, Family
from vf.inference.settings import VllmSettings
from vf.inference.vllm.adapter_formats import adapter_format
from vf.inference.vllm.launch import server_env

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[3] / "scripts" / "vllm_adapters.py"
# As PEFT writes it, in halves, keys that are values, and every layout and name of experts.
KINDS = {
    *(
        "Llama 3",
        "GLM-4",
        "Gemma 4 MoE",
        "gpt-oss",
        "Mixtral",
        "Nemotron 3",
        "DeepSeek-V3, Kimi-K2",
    ),
    *("Qwen3.5", "Qwen3.5-MoE", "Qwen3.5-MoE (text)", "Llama 4"),
}


def ignored(family: Family) -> frozenset[str]:
    return adapter_format(family.config()).ignored


def loaded(python: str, folder: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Have vLLM load adapters; return the exit code, and what it says of each."""
    done = subprocess.run(
        [python, SCRIPT, folder],
        env=server_env(VllmSettings(), os.environ, lora=True, cpu=True),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    return done.returncode, {line.pop("family"): line for line in lines}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(KINDS, id="kinds", marks=pytest.mark.gate),
        pytest.param(BY_NAME.keys() - KINDS, id="others"),
    ],
)
def test_vllm_applies_the_adapter_as_the_trainer_does(
    vllm_python: str, tmp_path: Path, names: set[str]
) -> None:
    for name in names:
        publish(BY_NAME[name], tmp_path / name)
    code, outcomes = loaded(vllm_python, tmp_path)
    assert outcomes.keys() == names
    assert code == 0, outcomes


def test_an_adapter_of_the_head_is_refused_where_vllm_does(
    vllm_python: str, tmp_path: Path
) -> None:
    only_head = {"train_attn": False, "train_mlp": False, "train_unembed": True}
    for name, family in BY_NAME.items():
        publish(family, tmp_path / name, **only_head)
    _, outcomes = loaded(vllm_python, tmp_path)
    refused = {name for name, family in BY_NAME.items() if "lm_head" in ignored(family)}
    assert {name for name, outcome in outcomes.items() if "lm_head" in str(outcome)} == refused


def test_what_the_formats_change_and_leave_out_has_to_be(vllm_python: str, tmp_path: Path) -> None:
    for name in ("Qwen3.5", "Mixtral", "Qwen3-MoE", "GLM-4"):
        publish(BY_NAME[name], tmp_path / name)
        shutil.rmtree(tmp_path / name / "adapter")
        adapted(BY_NAME[name], tmp_path / name / "base").save_pretrained(
            tmp_path / name / "adapter"
        )
    publish(BY_NAME["Llama 4 (text)"], tmp_path / "Llama 4 (text)", lora_target_modules=["q_proj"])
    code, outcomes = loaded(vllm_python, tmp_path)
    assert code == 1
    assert "lm_head" not in str(outcomes)
    assert outcomes["Qwen3.5"]["unchanged"], "in silence"
    assert outcomes["Mixtral"]["unchanged"], "in silence"
    assert "3D MoE weights" in outcomes["Qwen3-MoE"]["error"]
    assert "gate_up_proj" in outcomes["GLM-4"]["error"]
    assert outcomes["Llama 4 (text)"]["worst"] > 0.1, "vLLM reorders the weights"
