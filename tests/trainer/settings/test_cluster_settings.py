"""`[cluster]`: what it takes, and what it refuses."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tests.trainer.configs import configured
from vf.runtime.errors import ConfigError
from vf.trainer.settings.load_config import parse_config
from vf.trainer.settings.write_config import HIDDEN, to_toml, without_secrets


@pytest.mark.parametrize(
    ("cluster", "submits"),
    [
        ({}, False),
        ({"backend": "local", "address": "http://head:8265", "rank": {"cpus": 8}}, False),
        ({"backend": "ray", "address": "auto"}, False),
        ({"backend": "ray", "address": "head:6379"}, False),
        ({"backend": "ray", "address": "http://head:8265"}, True),
    ],
)
def test_a_run_is_submitted_to_a_url_with_ray(cluster: dict[str, Any], submits: bool) -> None:
    config = configured(cluster=cluster)
    assert config.cluster.submits is submits
    assert config.cluster.backend == cluster.get("backend", "local")


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"address": "head:6379"}, 'set backend = "ray", too'),
        ({"backend": "rai"}, "cluster.backend"),
        ({"backend": "ray", "adress": "auto"}, "Did you mean 'address'"),
        ({"backend": "ray", "rank": {"cpus": 0}}, "cluster.rank.cpus"),
        ({"backend": "ray", "worker": {"memory": -1}}, "cluster.worker.memory"),
        ({"backend": "ray", "server": {"gpus": 2}}, "cluster.server.gpus"),
        ({"backend": "ray", "wait": -1}, "cluster.wait"),
    ],
)
def test_what_is_wrong_is_named(cluster: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(cluster=cluster)
    assert words in str(caught.value)


def test_the_resolved_settings_are_settings_again_and_hide_secrets() -> None:
    environment = {"pip": ["einops"], "env_vars": {"HF_TOKEN": "hf_x"}}
    config = configured(cluster={"backend": "ray", "runtime_env": environment, "rank": {"cpus": 4}})
    assert parse_config(tomllib.loads(to_toml(config)))[0] == config
    shown = without_secrets(config).cluster.runtime_env
    assert shown == {"pip": ["einops"], "env_vars": {"HF_TOKEN": HIDDEN}}
    assert config.cluster.runtime_env == environment
