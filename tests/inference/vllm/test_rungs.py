"""Which way new weights take to the server."""

from __future__ import annotations

from typing import Any

import pytest

from vf.inference.settings import VllmSettings
from vf.inference.vllm import nccl
from vf.inference.vllm.vllm_engine import RUNGS, choose_rung
from vf.runtime.errors import ConfigError

URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("settings", "use_lora", "cpu", "vllm_here", "rung"),
    [
        ({}, True, True, False, "lora"),
        ({}, True, False, True, "lora"),
        ({"gpus": [1]}, True, False, True, "lora"),
        ({"base_url": URL}, True, False, True, "lora"),
        ({}, False, True, True, "disk"),
        ({}, False, False, True, "disk"),
        ({"gpus": [1]}, False, False, True, "nccl"),
        ({"gpus": [1]}, False, False, False, "disk"),
        ({"gpus": [1]}, False, True, True, "disk"),
        ({"base_url": URL}, False, False, True, "disk"),
        ({"publish": "lora"}, True, True, False, "lora"),
        ({"publish": "disk", "gpus": [1]}, False, False, True, "disk"),
        ({"publish": "disk", "base_url": URL}, False, False, True, "disk"),
        ({"publish": "nccl"}, False, False, True, "nccl"),
    ],
)
def test_the_rung_that_fits(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    use_lora: bool,
    cpu: bool,
    vllm_here: bool,
    rung: str,
) -> None:
    monkeypatch.setattr(nccl, "available", lambda: vllm_here)
    assert choose_rung(VllmSettings(**settings), use_lora=use_lora, cpu=cpu) == rung
    assert rung in RUNGS


@pytest.mark.parametrize(
    ("publish", "use_lora", "cpu", "vllm_here", "said"),
    [
        ("lora", False, False, True, "does not fit trainer.args.use_lora = false"),
        ("disk", True, False, True, "does not fit trainer.args.use_lora = true"),
        ("nccl", True, False, True, "does not fit trainer.args.use_lora = true"),
        ("nccl", False, True, True, "needs GPUs"),
        ("nccl", False, False, False, "needs vLLM in the trainer's environment"),
    ],
)
def test_a_rung_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    publish: str,
    use_lora: bool,
    cpu: bool,
    vllm_here: bool,
    said: str,
) -> None:
    monkeypatch.setattr(nccl, "available", lambda: vllm_here)
    with pytest.raises(ConfigError) as error:
        choose_rung(VllmSettings(publish=publish), use_lora=use_lora, cpu=cpu)  # type: ignore[arg-type]
    assert f'inference.publish = "{publish}"' in str(error.value)
    assert said in str(error.value)
