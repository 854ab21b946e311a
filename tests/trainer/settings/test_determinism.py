"""``deterministic = true`` is refused where it cannot hold, with what to set instead."""

from __future__ import annotations

from typing import Any

import pytest

from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError
from vf.trainer.settings.determinism import batch_invariant
from vf.trainer.settings.load_config import parse_config


def parse(args: dict[str, Any], **tables: Any) -> None:
    trainer = {"args": {"deterministic": True} | args} | tables.pop("trainer", {})
    parse_config({"model": "tiny", "env": {"id": "x"}, "trainer": trainer} | tables)


def test_the_usual_settings_are_fine() -> None:
    parse({})
    parse({"top_p": 0.9, "top_k": 5}, env=[{"id": "x", "min_p": 0.1}, {"id": "y"}])
    parse({"bf16": False, "max_refill": 0.5, "use_lora": False, "num_iterations": 2})
    parse({}, inference={"engine": "vllm", "env": {"VLLM_BATCH_INVARIANT": "1"}})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"bf16": True}, "trainer.args.bf16 = true rounds sums as they come; set bf16 = false"),
        ({"load_in_4bit": True}, "trainer.args.load_in_4bit = true has kernels of its own"),
        ({"packing": False}, "trainer.args.packing = false pads rows"),
        ({"lora_dropout": 0.1}, "trainer.args.lora_dropout > 0 is not in what is sampled"),
        ({"disable_dropout": False}, "trainer.args.disable_dropout = false trains with noise"),
        ({"max_steps_off_policy": 1}, "trainer.args.max_steps_off_policy > 0 lets timing decide"),
        ({"stream_minibatches": True}, "trainer.args.stream_minibatches = true adds gradients"),
        ({"oversample": 1.5}, "trainer.args.oversample > 1 lets timing decide"),
        ({"bf16": True, "oversample": 2.0}, "set bf16 = false; trainer.args.oversample > 1"),
    ],
)
def test_what_it_cannot_hold_with_is_named(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(args)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"trainer": {"gpus": 2}}, "is for one trainer process"),
        ({"trainer": {"accelerate_config": "ranks.yaml"}}, "set trainer.gpus = 1 without"),
        (
            {"inference": {"engine": "vllm", "base_url": "http://127.0.0.1:1/v1"}},
            "a server that is already running cannot be made batch-invariant",
        ),
        (
            {"inference": {"engine": "vllm", "env": {"VLLM_BATCH_INVARIANT": "0"}}},
            "sets VLLM_BATCH_INVARIANT=1, and inference.env says otherwise",
        ),
        (
            {"env": {"id": "x", "top_p": 0.9}, "inference": {"engine": "vllm"}},
            "env.top_p leaves out tokens that vLLM tells only beside a top_k",
        ),
        (
            {"env": [{"id": "x"}, {"id": "y", "min_p": 0.1}], "inference": {"engine": "vllm"}},
            "env.1.min_p leaves out tokens that vLLM tells only",
        ),
        (
            {
                "trainer": {"args": {"deterministic": True, "top_p": 0.9, "top_k": 5}},
                "env": {"id": "x", "top_k": 0},
                "inference": {"engine": "vllm"},
            },
            "env.top_p leaves out tokens that vLLM tells only",
        ),
    ],
)
def test_other_tables_are_merged_as_well(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({}, **tables)
    assert said in str(error.value)


def test_refills_are_refused_where_their_environment_is_a_matter_of_time() -> None:
    with pytest.raises(ConfigError, match=r"max_refill > 0 lets timing decide which environment"):
        parse({"max_refill": 0.5}, env=[{"id": "x"}, {"id": "y"}])


def test_a_server_is_batch_invariant_on_a_gpu_alone() -> None:
    settings = VllmSettings(env={"A": "b"})
    found = batch_invariant(settings, cpu=False)
    assert found.env == {"A": "b", "VLLM_BATCH_INVARIANT": "1"}
    assert settings.env == {"A": "b"}
    with pytest.raises(ConfigError, match=r'set inference\.engine = "embedded"'):
        batch_invariant(settings, cpu=True)
