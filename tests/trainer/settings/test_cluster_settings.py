"""`[cluster]`: what it takes, and what it refuses."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.settings.load_config import parse_config
from vf.trainer.settings.write_config import HIDDEN, to_toml, without_secrets


def run(**cluster: Any) -> dict[str, Any]:
    return {"model": "tiny", "env": {"id": "calculator"}, "cluster": cluster}


def test_a_run_is_on_this_machine_by_default() -> None:
    config, _ = parse_config({"model": "tiny", "env": {"id": "calculator"}})
    assert config.cluster.backend == "local"
    assert not config.cluster.submits


def test_one_toml_serves_a_cluster_and_this_machine() -> None:
    settings = run(backend="local", address="http://head:8265", rank={"cpus": 8})
    config, _ = parse_config(settings)
    assert not config.cluster.submits


@pytest.mark.parametrize(
    ("address", "submits"), [("auto", False), ("head:6379", False), ("http://head:8265", True)]
)
def test_a_url_is_where_a_run_is_submitted(address: str, submits: bool) -> None:
    config, _ = parse_config(run(backend="ray", address=address))
    assert config.cluster.submits is submits


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (run(address="head:6379"), 'set backend = "ray", too'),
        (run(backend="rai"), "cluster.backend"),
        (run(backend="ray", adress="auto"), "Did you mean 'address'"),
        (run(backend="ray", rank={"cpus": 0}), "cluster.rank.cpus"),
        (run(backend="ray", worker={"memory": -1}), "cluster.worker.memory"),
        (run(backend="ray", server={"gpus": 2}), "cluster.server.gpus"),
        (run(backend="ray", wait=-1), "cluster.wait"),
        (run(backend="ray") | {"trainer": {"gpus": [0, 2]}}, "trainer.gpus = 2"),
        (
            run(backend="ray") | {"inference": {"engine": "vllm", "gpus": [1]}},
            "inference.gpus_per_replica",
        ),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(settings)
    assert said in str(caught.value)


def test_the_resolved_settings_are_settings_again_and_hide_secrets() -> None:
    environment = {"pip": ["einops"], "env_vars": {"HF_TOKEN": "hf_x"}}
    config, _ = parse_config(run(backend="ray", runtime_env=environment, rank={"cpus": 4}))
    assert parse_config(tomllib.loads(to_toml(config)))[0] == config
    shown = without_secrets(config).cluster.runtime_env
    assert shown == {"pip": ["einops"], "env_vars": {"HF_TOKEN": HIDDEN}}
    assert config.cluster.runtime_env == environment
