"""``deterministic = true`` is refused where it cannot hold, with what to set instead."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.configs import configured
from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError
from vf.trainer.settings.determinism import batch_invariant


def parse(args: dict[str, Any], **tables: Any) -> None:
    configured({"deterministic": True} | args, **tables)


def test_the_usual_settings_are_fine() -> None:
    parse({})
    parse({"top_p": 0.9, "top_k": 5}, env=[{"id": "x", "min_p": 0.1}, {"id": "y"}])
    parse({"bf16": False, "max_refill": 0.5, "use_lora": False, "num_iterations": 2})
    parse({}, inference={"engine": "vllm", "env": {"VLLM_BATCH_INVARIANT": "1"}})


VLLM = {"engine": "vllm"}
BATCH = "VLLM_BATCH_INVARIANT"
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"bf16": True}, {}, "trainer.args.bf16 = true rounds sums as they come; set bf16 = false"),
    ({"load_in_4bit": True}, {}, "trainer.args.load_in_4bit = true has kernels of its own"),
    ({"packing": False}, {}, "trainer.args.packing = false pads rows"),
    ({"lora_dropout": 0.1}, {}, "trainer.args.lora_dropout > 0 is not in what is sampled"),
    ({"disable_dropout": False}, {}, "trainer.args.disable_dropout = false trains with noise"),
    ({"max_steps_off_policy": 1}, {}, "trainer.args.max_steps_off_policy > 0 lets timing decide"),
    ({"stream_minibatches": True}, {}, "trainer.args.stream_minibatches = true adds gradients"),
    ({"oversample": 1.5}, {}, "trainer.args.oversample > 1 lets timing decide"),
    ({"bf16": True, "oversample": 2.0}, {}, "set bf16 = false; trainer.args.oversample > 1"),
    ({"max_refill": 0.5}, {"env": [{"id": "x"}, {"id": "y"}]}, "max_refill > 0 lets timing decide"),
    ({}, {"trainer": {"gpus": 2}}, "is for one trainer process"),
    ({}, {"trainer": {"accelerate_config": "ranks.yaml"}}, "set trainer.gpus = 1 without"),
    ({}, {"inference": VLLM | {"base_url": "http://h/v1"}}, "already running cannot be made batch"),
    (
        {},
        {"inference": VLLM | {"env": {BATCH: "0"}}},
        f"{BATCH}=1, and inference.env says other",
    ),
    ({}, {"env": {"id": "x", "top_p": 0.9}, "inference": VLLM}, "env.top_p leaves out tokens that"),
    (
        {},
        {"env": [{"id": "x"}, {"id": "y", "min_p": 0.1}], "inference": VLLM},
        "env.1.min_p leaves out tokens that vLLM tells only beside a top_k",
    ),
    (
        {"top_p": 0.9, "top_k": 5},
        {"env": {"id": "x", "top_k": 0}, "inference": VLLM},
        "env.top_p leaves out tokens that vLLM tells only",
    ),
]


@pytest.mark.parametrize(("args", "tables", "words"), REFUSED)
def test_what_it_cannot_hold_with_is_named(
    args: dict[str, Any], tables: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse(args, **tables)
    assert words in str(error.value)


def test_a_server_is_batch_invariant_on_a_gpu_alone() -> None:
    settings = VllmSettings(env={"A": "b"})
    found = batch_invariant(settings, cpu=False)
    assert found.env == {"A": "b", "VLLM_BATCH_INVARIANT": "1"}
    assert settings.env == {"A": "b"}
    with pytest.raises(ConfigError, match=r'set inference\.engine = "embedded"'):
        batch_invariant(settings, cpu=True)
