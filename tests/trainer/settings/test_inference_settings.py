"""``[inference]``: what is understood, and which settings contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.configs import configured
from vf.inference.settings import EmbeddedSettings, VllmSettings
from vf.runtime.errors import ConfigError
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import load_config, parse_config

URL = "http://127.0.0.1:8000/v1"


def parse(**inference: Any) -> Any:
    return configured(inference=inference).inference


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
        {"base_url": URL, "away_timeout": 30.0},
        {
            "base_urls": [URL, "http://other:8000/v1"],
            "away_timeout": 30.0,
            "requests_per_server": 8,
        },
        {
            "replicas": 2,
            "gpus_per_replica": 3,
            "gpus": [0, 1, 2, 5, 6, 7],
            "requests_per_server": 8,
        },
        {"replicas": 2, "gpus_per_replica": 1},
    ],
)
def test_settings_that_go_together(fine: dict[str, Any]) -> None:
    settings = parse(engine="vllm", **fine)
    assert {name: getattr(settings, name) for name in fine} == fine


OF_A_SERVER = {"python": "a", "executable": "a", "host": "0.0.0.0", "port": 8000, "sleep": True}
OF_A_SERVER |= {"startup_timeout": 5, "restarts_per_hour": 1, "gpus": [0]}
OF_A_SERVER |= {"env": {"A": "b"}, "args": {"seed": 1}}


@pytest.mark.parametrize(
    ("inference", "said"),
    [
        ({"python": "a", "executable": "b"}, ["inference", "python and executable"]),
        ({"api_key_env": "KEY"}, ["inference", "api_key_env is for base_url"]),
        ({"away_timeout": 30.0}, ["inference", "away_timeout is for base_url"]),
        ({"base_url": URL, "publish": "nccl"}, ['publish = "nccl"']),
        ({"base_url": URL, "base_urls": [URL]}, ["base_url and base_urls are two ways"]),
        ({"base_urls": [URL, URL.removesuffix("v1")]}, ["base_urls names one server twice"]),
        ({"base_urls": [URL], "replicas": 2}, ["replicas is for a server that vf-rl starts"]),
        ({"base_url": URL, "gpus_per_replica": 2}, ["gpus_per_replica is for a server that"]),
        ({"replicas": 0}, ["inference.replicas = 0"]),
        ({"replicas": 2, "port": 65535}, ["port = 65535 with replicas = 2 ends beyond 65535"]),
        ({"replicas": 2, "gpus": [6, 6]}, ["gpus = [6, 6] names a device twice"]),
        ({"replicas": 2, "gpus": [0, 1, 2]}, ["gpus names 3 GPUs", "replicas = 2 cannot share"]),
        (
            {"replicas": 2, "gpus": [0, 1], "gpus_per_replica": 2},
            ["gpus names 2 GPUs, but replicas = 2 with gpus_per_replica = 2 need 4"],
        ),
        *[
            ({"base_url": URL, name: value}, [f"inference: {name} is for a server that vf-rl"])
            for name, value in OF_A_SERVER.items()
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


def test_settings_of_a_server_ask_for_its_engine() -> None:
    with pytest.raises(
        ConfigError, match=r'inference\.base_url is for a vLLM server: set .*"vllm"'
    ):
        parse(base_url=URL)


ONE = 'model = "tiny"\nenv.id = "x"\n'
FOR_VLLM = """
model = "tiny"
[env]
id = "calculator"
[inference]
engine = "vllm"
python = "python3"
gpus = [0]
logprob_tolerance = 0.1
[inference.args]
gpu_memory_utilization = 0.5
max_num_batched_tokens = 2048
max_requests = 16
"""


def load(tmp_path: Path, text: str, *overrides: str) -> tuple[Config, list[str]]:
    (tmp_path / "run.toml").write_text(text)
    return load_config(tmp_path / "run.toml", overrides)


def test_one_toml_serves_both_engines(tmp_path: Path) -> None:
    config, [note] = load(tmp_path, FOR_VLLM)
    assert isinstance(config.inference, VllmSettings)
    assert config.inference.args == {"gpu_memory_utilization": 0.5, "max_num_batched_tokens": 2048}
    assert note.endswith("this is 'vllm': inference.args.max_requests")

    config, [note] = load(tmp_path, FOR_VLLM, "inference.engine=embedded")
    assert isinstance(config.inference, EmbeddedSettings)
    assert (config.inference.args.max_requests, config.inference.logprob_tolerance) == (16, 0.1)
    left = ("gpus", "python", "args.gpu_memory_utilization", "args.max_num_batched_tokens")
    assert all(f"inference.{name}" in note for name in left)


def test_an_engine_that_was_changed_in_the_file_leaves_the_other_ones_settings_aside(
    tmp_path: Path,
) -> None:
    config, notes = load(tmp_path, FOR_VLLM.replace('"vllm"', '"embedded"'))
    assert isinstance(config.inference, EmbeddedSettings)
    assert "inference.args.gpu_memory_utilization" in notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FOR_VLLM.replace("max_requests", "max_request"), "max_request: unknown key. Did you mean"),
        (FOR_VLLM.replace("gpus", "gpsu"), "inference.gpsu: unknown key"),
        (
            ONE + "inference.args.gpu_memory_utilization = 0.5",
            "gpu_memory_utilization: unknown",
        ),
    ],
)
def test_misspelt_settings_are_not_left_aside(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text, "inference.engine=embedded")


def test_a_number_of_gpus_is_understood_as_those_of_each_server() -> None:
    raw = {"model": "tiny", "env": {"id": "calculator"}}
    table = {"engine": "vllm", "gpus": 4, "replicas": 2}
    config, notes = parse_config({**raw, "inference": dict(table)})
    assert config.inference == VllmSettings(replicas=2, gpus_per_replica=2)
    assert notes == ["inference.gpus = 4 was understood as gpus_per_replica = 2"]
    config, notes = parse_config(
        {**raw, "inference": {"engine": "vllm", "gpus": 8, "gpus_per_replica": 2}}
    )
    assert config.inference == VllmSettings(replicas=4, gpus_per_replica=2)
    assert notes == ["inference.gpus = 8 was understood as replicas = 4"]
    config, notes = parse_config({**raw, "inference": table | {"gpus_per_replica": 2}})
    assert config.inference == VllmSettings(replicas=2, gpus_per_replica=2)
    assert notes == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"replicas": 3}, r"inference\.replicas = 3 cannot share 4 equally"),
        ({"gpus_per_replica": 4}, r"replicas = 2 of gpus_per_replica = 4 cannot share 4 equally"),
        ({"replicas": "two"}, r"inference\.replicas = 'two'"),
    ],
)
def test_a_number_of_gpus_that_does_not_fit_the_servers_is_refused(
    other: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(**{"engine": "vllm", "gpus": 4, "replicas": 2} | other)
