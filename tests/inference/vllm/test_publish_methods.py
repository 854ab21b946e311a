"""Which way new weights take to the server."""

from __future__ import annotations

from typing import Any

import pytest

from vf.inference.settings import VllmSettings
from vf.inference.vllm import publish_methods
from vf.inference.vllm.publish_methods import METHODS, choose_method
from vf.runtime.errors import ConfigError

URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("settings", "use_lora", "cpu", "vllm_here", "method"),
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
        ({"publish": "nccl", "gpus": [1]}, False, False, True, "nccl"),
        ({"gpus": [0, 1]}, False, False, True, "disk"),
    ],
)
def test_the_method_that_fits(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    use_lora: bool,
    cpu: bool,
    vllm_here: bool,
    method: str,
) -> None:
    monkeypatch.setattr(publish_methods, "_reaches_by_nccl", lambda: vllm_here)
    found = choose_method(VllmSettings(**settings), use_lora=use_lora, cpu=cpu, trainer_gpus=[0])
    assert found == method
    assert method in METHODS


@pytest.mark.parametrize(
    ("publish", "use_lora", "cpu", "vllm_here", "gpus", "said"),
    [
        ("lora", False, False, True, [1], "does not fit trainer.args.use_lora = false"),
        ("disk", True, False, True, [1], "does not fit trainer.args.use_lora = true"),
        ("nccl", True, False, True, [1], "does not fit trainer.args.use_lora = true"),
        ("nccl", False, True, True, [1], "needs GPUs"),
        ("nccl", False, False, True, [0], "needs GPUs of the server's own"),
        ("nccl", False, False, True, None, "needs GPUs of the server's own"),
        ("nccl", False, False, False, [1], "needs vLLM in the trainer's environment"),
    ],
)
def test_a_method_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    publish: str,
    use_lora: bool,
    cpu: bool,
    vllm_here: bool,
    gpus: list[int] | None,
    said: str,
) -> None:
    monkeypatch.setattr(publish_methods, "_reaches_by_nccl", lambda: vllm_here)
    with pytest.raises(ConfigError) as error:
        choose_method(
            VllmSettings.model_validate({"publish": publish, "gpus": gpus}),
            use_lora=use_lora,
            cpu=cpu,
            trainer_gpus=[0],
        )
    assert f'inference.publish = "{publish}"' in str(error.value)
    assert said in str(error.value)


def test_adapters_have_caches_of_their_own() -> None:
    settings = VllmSettings(keep_cache=True)
    assert choose_method(settings, use_lora=False, cpu=True) == "disk"
    with pytest.raises(ConfigError, match="keep_cache is for weights that change in place"):
        choose_method(settings, use_lora=True, cpu=True)
