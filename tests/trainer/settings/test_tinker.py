"""`[trainer] backend = "tinker"`: what its server cannot honour is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import vf
from vf.runtime.errors import ConfigError
from vf.trainer.settings.config import Config
from vf.trainer.settings.learner_settings import learner_config
from vf.trainer.settings.load_config import parse_config
from vf.trainer.settings.overlap import steps_ahead, streams


def parse(args: dict[str, Any], **tables: Any) -> tuple[Config, list[str]]:
    trainer = {"backend": "tinker", "args": args} | tables.pop("trainer", {})
    env = {"id": "calculator"} | tables.pop("env", {})
    return parse_config({"model": "tiny", "env": env, "trainer": trainer} | tables)


def test_the_server_samples_and_what_is_for_another_engine_is_left_aside() -> None:
    config, notes = parse({"loss_fn": "gspo"}, inference={"args": {"max_requests": 64}})
    assert config.inference.engine == "tinker"
    assert len(notes) == 1
    assert "inference.args" in notes[0]
    assert steps_ahead(config) == 1
    assert not streams(config)
    learner = learner_config(
        "tiny", None, {"backend": "tinker", "tinker": {"base_url": "http://x"}}
    )
    assert (learner.inference.engine, learner.trainer.tinker.base_url) == ("tinker", "http://x")


@pytest.mark.parametrize(
    ("args", "tables", "words"),
    [
        ({"use_lora": False}, {}, "use_lora: it trains adapters only"),
        ({"lora_alpha": 16}, {}, "lora_alpha: it must be 32"),
        ({"lora_dropout": 0.1}, {}, "lora_dropout: it is the server's own"),
        ({"optim": "adamw_8bit"}, {}, "optim: it is the server's own"),
        ({"bf16": True}, {}, "bf16: it is the server's own"),
        ({"kl_penalty_coef": 0.1}, {}, "kl_penalty_coef: its losses have no such term"),
        ({"entropy_coef": 0.1}, {}, "entropy_coef: its losses have no such term"),
        ({"router_replay": "replay"}, {}, "router_replay: its losses have no such term"),
        ({"teacher_model": "tiny"}, {}, "teacher_model: its losses have no such term"),
        ({"temperature": 0.9}, {}, "trainer.args.temperature: it trains the distribution"),
        ({"top_k": 20}, {}, "top_k: it trains the whole distribution"),
        ({"eval_min_p": 0.1}, {}, "eval_min_p: it samples with no such filter"),
        ({"stream_minibatches": True}, {}, "stream_minibatches: a step's data are sent together"),
        ({}, {"env": {"temperature": 0.5}}, "env.temperature: it trains the distribution"),
        ({}, {"inference": {"engine": "vllm"}}, "inference.engine: the server samples, too"),
        ({}, {"inference": {"port": 1}}, "port is for an engine that this run serves"),
        ({}, {"trainer": {"gpus": 1}}, "trainer.gpus: no device of this machine trains"),
        ({}, {"cluster": {"backend": "ray"}}, 'cluster.backend: it must be "local"'),
        ({}, {"trainer": {"tinker": {"url": "x"}}}, "trainer.tinker.url"),
        ({}, {"trainer": {"tinker": {"away_timeout": 900}}}, "trainer.tinker.away_timeout"),
        ({}, {"trainer": {"backend": "local", "tinker": {"base_url": "x"}}}, "only backend"),
        (
            {},
            {"trainer": {"backend": "local"}, "inference": {"engine": "tinker"}},
            'needs trainer.backend = "tinker"',
        ),
    ],
)
def test_what_it_cannot_honour_is_named(
    args: dict[str, Any], tables: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        parse(args, **tables)


def test_without_the_sdk_it_says_how_to_install_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'vf-rl\[tinker\]'"):
        vf.Learner("tiny", backend="tinker", tinker={"base_url": "http://127.0.0.1:1"})
