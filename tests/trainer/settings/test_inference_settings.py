"""``[inference]``: what is understood, and which settings contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from vf.inference.settings import EmbeddedSettings, VllmSettings
from vf.runtime.errors import ConfigError
from vf.trainer.settings.load_config import parse_config

URL = "http://127.0.0.1:8000/v1"


def parse(**inference: Any) -> EmbeddedSettings | VllmSettings:
    raw = {"model": "tiny", "env": {"id": "calculator"}, "inference": inference}
    return parse_config(raw)[0].inference


def test_the_embedded_engine_is_the_default() -> None:
    assert parse() == EmbeddedSettings()
    assert parse(engine="vllm") == VllmSettings()


@pytest.mark.parametrize(
    "fine",
    [
        {"python": "~/vllm/bin/python", "gpus": [0, 2], "sleep": True, "env": {"A": "b"}},
        {"executable": "vllm serve", "port": 8000, "host": "::1"},
        {"args": {"max_num_seqs": 8, "compilation_config": {"level": 3}, "enforce_eager": True}},
        {"base_url": URL},
        {"base_url": URL, "api_key_env": "KEY", "publish": "disk", "logprob_tolerance": 0.2},
        {"base_url": URL, "publish": "lora", "thinking_history": "template"},
    ],
)
def test_settings_that_go_together(fine: dict[str, Any]) -> None:
    settings = parse(engine="vllm", **fine)
    assert {name: getattr(settings, name) for name in fine} == fine


@pytest.mark.parametrize(
    ("inference", "said"),
    [
        ({"python": "a", "executable": "b"}, ["inference", "python and executable"]),
        ({"api_key_env": "KEY"}, ["inference", "api_key_env is for base_url"]),
        ({"base_url": URL, "publish": "nccl"}, ['publish = "nccl"']),
        *[
            ({"base_url": URL, name: value}, [f"inference: {name} is for a server that vf-rl"])
            for name, value in {
                "python": "a",
                "executable": "a",
                "host": "0.0.0.0",
                "port": 8000,
                "startup_timeout": 5,
                "gpus": [0],
                "env": {"A": "b"},
                "sleep": True,
                "args": {"seed": 1},
            }.items()
        ],
        (
            {"base_url": URL, "python": "a", "sleep": True},
            ["python, sleep is for a server that vf-rl starts"],
        ),
        ({"port": 70000}, ["inference.port = 70000"]),
        ({"gpus": [-1]}, ["inference.gpus[0] = -1"]),
        ({"publish": "ftp"}, ["inference.publish = 'ftp'"]),
        ({"startup_timeout": 0}, ["inference.startup_timeout = 0"]),
        ({"logprob_tolerance": 0}, ["inference.logprob_tolerance = 0"]),
        ({"baseurl": URL}, ["inference.baseurl: unknown key. Did you mean 'base_url'"]),
        ({"env": {"A": 1}}, ["inference.env.A = 1"]),
    ],
)
def test_a_contradiction_or_a_wrong_value_is_named(
    inference: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        parse(engine="vllm", **inference)
    for words in said:
        assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_settings_of_the_other_engine_are_unknown_keys() -> None:
    with pytest.raises(ConfigError, match=r"inference\.base_url: unknown key"):
        parse(base_url=URL)
    with pytest.raises(ConfigError, match=r"inference\.args\.max_requests_: unknown key"):
        parse(args={"max_requests_": 3})
    assert parse(engine="vllm", args={"max_requests": 3}).args == {"max_requests": 3}
