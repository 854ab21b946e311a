"""Models that see, trained through a real vLLM server on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.inference.vision_models import save_family
from tests.trainer.test_image_training import Pictures
from tests.trainer.test_vllm_training import inference
from vf.trainer.rl_trainer import RLTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHIM = Path(__file__).parents[1] / "inference" / "vllm" / "with_torchvision"
ALL = {"use_lora": False, "train_vision": True}


class Guessed(Pictures):
    """Rewards what half of all tokens are."""

    rubric = vf.Rubric(outcome=lambda trace: float(trace.branches[0].token_ids[-1] % 2))


vf.register("test-guessed", Guessed)


@pytest.mark.parametrize(
    ("family", "settings", "replicas"),
    [
        pytest.param("qwen2_5_vl", {}, 1, marks=pytest.mark.gate),
        ("qwen3_vl", {}, 1),
        ("idefics3", {}, 1),
        ("qwen3_vl", ALL, 2),
    ],
)
def test_the_server_sees_what_the_trainer_sees(
    family: str,
    settings: dict[str, Any],
    replicas: int,
    make_trainer: Callable[..., RLTrainer],
    vllm_python: str,
    tmp_path: Path,
) -> None:
    save_family(family, tmp_path / "model", width=32)
    path = f"{SHIM}:{Path(vllm_python).parents[1] / 'torchvision'}"
    trainer = make_trainer(
        env="test-guessed",
        model=str(tmp_path / "model"),
        images=True,
        inference=inference(vllm_python, env={"PYTHONPATH": path}, replicas=replicas),
        learning_rate=1e-2,
        max_steps=3,
        max_tokens=16,
        **settings,
    )
    lines = [trainer.step() for _ in range(3)]
    assert max(line["logprob_gap"] for line in lines) < 1e-3, lines
    assert all(line["rollouts/failed"] == 0 for line in lines)
    assert all(line["grad_norm"] > 0 for line in lines[:2]), "the weights have changed"
    branches = [branch for trace in trainer.folder.step_traces(3) for branch in trace.branches]
    assert max(len(branch.images) for branch in branches) == 2
