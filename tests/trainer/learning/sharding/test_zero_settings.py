"""What a launcher may ask of DeepSpeed, as far as it shows without DeepSpeed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.learning.sharding.rank_updates import settings
from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.copies import Copies
from vf.trainer.learning.sharding.ranks import choose_sharding
from vf.trainer.learning.sharding.zero import _settle
from vf.trainer.preflight import preflight
from vf.trainer.processes import launch
from vf.trainer.processes.launch import check_deepspeed, is_sharded, processes_to_launch, zero_stage

EXAMPLE = Path(__file__).parents[4] / "configs" / "accelerate" / "deepspeed.yaml"


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As Accelerate leaves it to a rank."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.delenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", raising=False)
    return monkeypatch


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_stage_is_found_and_only_the_third_spreads_the_model(
    stage: int, environ: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environ.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", str(stage))
    assert zero_stage() == stage
    assert is_sharded() == (stage == 3)
    file = tmp_path / "zero.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 4 - stage}}))
    environ.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    assert zero_stage() == 4 - stage
    file.write_text("{}")
    with pytest.raises(ConfigError, match="zero_optimization"):
        zero_stage()


def test_one_process_needs_no_deepspeed(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("WORLD_SIZE", "1")
    assert zero_stage() is None
    assert type(choose_sharding()) is Copies


def test_stage_3_and_the_embedded_engine_exclude_each_other(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    with pytest.raises(ConfigError, match="ZeRO's stage 1 or 2"):
        preflight(settings(use_lora=True))


@pytest.mark.parametrize("found", ["", "0.9.5", "0.19.3", "0.19.3+cu13"])
def test_a_missing_or_old_deepspeed_is_refused_before_anything_is_launched(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if not found:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(launch, "version", version)
    config = settings(use_lora=True)
    trainer = config.trainer.model_copy(update={"accelerate_config": str(EXAMPLE)})
    with pytest.raises(ConfigError, match=r"vf-rl\[deepspeed\]"):
        processes_to_launch(config.model_copy(update={"trainer": trainer}))
    monkeypatch.setattr(launch, "version", lambda name: "0.20.1.dev0")
    check_deepspeed()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"zero_optimization": {"stage": 0}}, "1, 2 or 3"),
        ({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}, "bf16"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "offload_param to nvme",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _settle(asked)


def test_the_trainers_precision_is_deepspeeds() -> None:
    low = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    with pytest.raises(ConfigError, match=r"trainer\.args\.bf16 decides"):
        _settle(low)
    _settle(low, torch.bfloat16)
    assert low["data_types"] == {"grad_accum_dtype": "fp32"}
    with pytest.raises(ConfigError, match="take stage 2 or 3"):
        _settle({"zero_optimization": {"stage": 1}}, torch.bfloat16)
