"""What fits a GPU is said to fit, and what does not is refused with what would help."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.trainer.qwen3 import qwen3_folder
from vf.trainer.learning.memory.fit import Device, check_fit, disk_needed, plan_memory, settle
from vf.trainer.learning.memory.trainer_memory import Shape
from vf.trainer.preflight import model_shape, preflight, read_model_config
from vf.trainer.processes.launch import Sharing, sharing
from vf.trainer.run.plan import Memory
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import parse_config

FSDP = str(Path(__file__).parents[4] / "configs" / "accelerate" / "fsdp2.yaml")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def shape_of(name: str, place: Path) -> Shape:
    return model_shape(read_model_config(str(qwen3_folder(name, place))))


def configured(
    inference: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **args: Any
) -> Config:
    settings = {"max_seq_len": 4096, "max_prompt_len": 512, "bf16": True, **args}
    raw = {
        "model": "tiny",
        "env": {"id": "calculator"},
        "inference": inference or {},
        "trainer": {**(trainer or {}), "args": settings},
    }
    return parse_config(raw)[0]


def fitted(config: Config, shape: Shape, gigabytes: float) -> Memory:
    device = Device.of(gigabytes)
    config, _ = settle(config, shape, device)
    memory = plan_memory(config, shape, device)
    check_fit(memory, config)
    return memory


def vllm(**settings: Any) -> dict[str, Any]:
    return {"engine": "vllm", **settings}


def test_a_cache_that_is_too_large_is_refused_with_how_many_requests_fit(models: Path) -> None:
    shape = shape_of("Qwen3-0.6B", models)
    with pytest.raises(vf.ConfigError) as error:
        fitted(configured({"args": {"max_requests": 64}}), shape, 24)
    said = str(error.value)
    assert "a GPU of 24 GB has 22.4 GiB free" in said
    found = re.search(
        r"key-value cache 28\.\d GiB \(lower inference\.args\.max_requests to (\d+)", said
    )
    assert found is not None, said
    fits = int(found[1])
    assert fits > 32
    fitted(configured({"args": {"max_requests": fits}}), shape, 24)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"use_lora": False}, "use_lora = true"),
        ({"use_lora": False, "optim": "adamw"}, 'trainer.args.optim = "adamw_8bit"'),
        ({"bf16": False}, "trainer.args.bf16 = true"),
        ({"micro_batch_tokens": 2**19, "batch_size": 128}, "gradient_checkpointing = true"),
    ],
)
def test_what_would_help_is_named(settings: dict[str, Any], named: str, models: Path) -> None:
    settings = {"gradient_checkpointing": False, **settings}
    with pytest.raises(vf.ConfigError, match=re.escape(named)):
        fitted(configured(vllm(gpus=[1]), **settings), shape_of("Qwen3-8B", models), 24)


@pytest.mark.slow
def test_a_server_without_room_for_one_context_is_refused(models: Path) -> None:
    config = configured(vllm(args={"gpu_memory_utilization": 0.2}))
    with pytest.raises(vf.ConfigError, match=r"gpu_memory_utilization, lower trainer\.args"):
        fitted(config, shape_of("Qwen3-8B", models), 80)


@pytest.mark.slow
@pytest.mark.gate
def test_trainer_and_server_on_one_gpu_share_it(models: Path) -> None:
    shape, args = shape_of("Qwen3-8B", models), {"gpu_memory_utilization": 0.9}
    with pytest.raises(vf.ConfigError, match=r"the vLLM server 67\.1 GiB \(lower inference\.args"):
        fitted(configured(vllm(args=args)), shape, 80)
    apart = fitted(configured(vllm(args=args, gpus=[1])), shape, 80)
    assert not apart.shared
    assert sum(apart.server.values()) == int(0.9 * 80e9)
    # While it sleeps, only what the trainer keeps is beside it.
    assert fitted(
        configured(vllm(args={"gpu_memory_utilization": 0.7}, sleep=True)), shape, 80
    ).shared


def test_the_cache_of_a_server_holds_what_its_size_says(models: Path) -> None:
    shape = shape_of("Qwen3-0.6B", models)
    one = fitted(configured(vllm()), shape, 24)
    # Keys and values of 28 layers with 8 heads of 128, 2 bytes each.
    context = 4096 * 2 * 28 * 8 * 128 * 2
    assert one.contexts == pytest.approx(one.server["key-value cache"] / context)
    two = fitted(configured(vllm(gpus=[1, 2])), shape, 24)
    four = fitted(configured(vllm(gpus=[1, 2], args={"tensor_parallel_size": 2})), shape, 24)
    assert two.contexts > 2 * one.contexts  # two copies, each with a GPU of its own
    assert two.contexts < four.contexts  # and one copy on both, whose weights are there once


@pytest.mark.slow
@pytest.mark.gate
def test_processes_that_share_a_model_hold_a_part_each(models: Path) -> None:
    shape, args = shape_of("Qwen3-8B", models), {"use_lora": False, "gradient_checkpointing": True}
    alone = configured(vllm(gpus=[0]), {"gpus": [1]}, **args)
    with pytest.raises(vf.ConfigError, match=r"share them with trainer\.accelerate_config"):
        fitted(alone, shape, 80)
    trainer = {"gpus": [1, 2, 3, 4], "accelerate_config": FSDP}
    four = fitted(configured(vllm(gpus=[0]), trainer, **args), shape, 80)
    assert four.trainer["weights"] == 4 * shape.parameters // 4
    assert four.trainer["optimizer"] == 8 * shape.parameters // 4
    assert "gathered" in four.trainer


def accelerated(path: str, **settings: Any) -> Sharing:
    config = configured(vllm(), {"accelerate_config": path}, **settings)
    return sharing(config)


def test_what_processes_share_is_read_before_and_after_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = Path(FSDP).with_name("deepspeed.yaml")
    assert accelerated(FSDP) == Sharing(2, 3)
    assert accelerated(str(zero)) == Sharing(2, 2)
    offloading = tmp_path / "offloading.yaml"
    offloading.write_text(
        zero.read_text().replace("optimizer_device: none", "optimizer_device: cpu")
    )
    assert accelerated(str(offloading)) == Sharing(2, 2, moments_on_host=True)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert accelerated(FSDP) == Sharing(4)  # the launcher's word counts
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "true")
    assert accelerated(FSDP) == Sharing(4, 3, moments_on_host=True, weights_on_host=True)
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    file = tmp_path / "zero.json"
    file.write_text('{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}')
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    assert accelerated(FSDP) == Sharing(4, 1, moments_on_host=True)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_what_auto_finds_fits(engine: str, models: Path) -> None:
    args: dict[str, Any] = {"bf16": "auto", "micro_batch_tokens": "auto", "batch_size": 256}
    config, shape = configured({"engine": engine}, **args), shape_of("Qwen3-1.7B", models)
    for gigabytes in (24, 48, 80):
        found, said = settle(config, shape, Device.of(gigabytes))
        assert found.args.bf16 is True
        assert said.startswith(f"{found.args.micro_batch_tokens:,} tokens, found for ")
        fitted(config, shape, gigabytes)


def test_preflight_refuses_what_the_machine_cannot_hold() -> None:
    config = configured({"args": {"max_requests": 10**6}}, max_seq_len=1024)
    with pytest.raises(vf.ConfigError, match=r"this machine has .*lower inference\.args"):
        preflight(config)


def test_checkpoints_that_are_kept_take_disk(models: Path) -> None:
    shape = shape_of("Qwen3-1.7B", models)
    shared: dict[str, Any] = {"use_lora": False, "max_steps": 500, "save_steps": 50}
    timed = configured(**shared, save_total_limit=1)
    assert disk_needed(timed, shape) == 4 * 14 * shape.parameters
    every = configured(**shared, save_minutes=0, save_total_limit=99)
    few = configured(**shared, save_minutes=0, save_total_limit=1)
    assert disk_needed(every, shape) == 4 * disk_needed(few, shape) == 12 * 14 * shape.parameters
