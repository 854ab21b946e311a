"""A server of our own: how it is started, and what is said when it does not start."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.inference.vllm.stand_in_engine import Standing
from tests.waiting import Clock, alive, wait_until
from vf.runtime.errors import ConfigError, EngineError

Stand = Callable[..., Standing]


def test_it_is_started_with_the_flags_of_the_run_and_stopped(stand: Stand) -> None:
    standing = stand(
        rank=9, max_seq_len=300, args={"gpu_memory_utilization": 0.3, "enforce-eager": False}
    ).start()
    journal = standing.journal
    wanted = {
        "--model": "org/model",
        "--served-model-name": "org/model",
        "--max-model-len": "300",
        "--max-lora-rank": "16",
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--gpu-memory-utilization": "0.3",
    }
    assert {name: journal.flag(name) for name in wanted} == wanted
    words = journal.starts[0]["start"]
    assert "--no-enforce-eager" in words
    assert "--enforce-eager" not in words
    assert journal.starts[0]["env"]["VLLM_NO_USAGE_STATS"] == "1"
    assert standing.engine.base_url == f"http://127.0.0.1:{journal.flag('--port')}/v1"
    assert all(map(alive, journal.pids))
    standing.engine.check()
    standing.engine.stop()
    assert not any(map(alive, journal.pids))
    standing.engine.stop()


def test_an_empty_base_url_means_a_server_of_our_own(stand: Stand) -> None:
    standing = stand(base_url="").start()
    assert standing.engine.base_url == f"http://127.0.0.1:{standing.journal.flag('--port')}/v1"


def test_the_shipped_model_is_served_under_its_short_name(stand: Stand) -> None:
    standing = stand(model="tiny").start()
    model = standing.journal.flag("--model")
    assert model is not None
    assert model.endswith("inference/tiny")
    assert standing.journal.flag("--served-model-name") == "tiny"


def test_gpus_are_handed_to_the_server(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    standing = stand(gpus=[2, 0]).start()
    assert standing.journal.starts[0]["env"]["CUDA_VISIBLE_DEVICES"] == "7,5"
    assert standing.journal.flag("--data-parallel-size") == "2"


def test_waiting_is_reported_with_the_servers_last_line(stand: Stand) -> None:
    standing = stand(how={"starting": 0.6}).start()
    told = [text for text in standing.said if "Loading safetensors checkpoint shards" in text]
    assert told
    assert told[-1].startswith("vLLM is starting, ")


def test_flags_that_the_server_refuses_are_an_error_of_the_config(stand: Stand) -> None:
    standing = stand(args={"bogus": 1})
    with pytest.raises(ConfigError) as error:
        standing.start()
    assert "exit code 2" in str(error.value)
    assert "unrecognized arguments: --bogus 1" in str(error.value)
    assert "inference.log" in str(error.value)


def test_a_rank_that_vllm_does_not_know_is_an_error_of_the_config(stand: Stand) -> None:
    with pytest.raises(ConfigError, match=r"--max-lora-rank: invalid choice: 600"):
        stand(rank=600).start()


def test_a_server_that_dies_at_its_start_is_quoted(stand: Stand) -> None:
    cause = "RuntimeError: no kernel image is available"
    words = "\n".join([cause, *["  frame"] * 30])
    with pytest.raises(EngineError) as error:
        stand(how={"last_words": words, "exit_code": 3}).start()
    assert "exit code 3" in str(error.value)
    assert cause in str(error.value)
    assert "frame" in str(error.value)


def test_a_server_that_never_becomes_healthy_is_given_up(stand: Stand, clock: Clock) -> None:
    standing = stand(how={"unhealthy": True}, startup_timeout=600.0)

    def say(text: str) -> None:
        if "Loading safetensors" in text:
            clock.jump(600.0)

    with pytest.raises(EngineError) as error:
        standing.engine.start(say)
    assert "not healthy after inference.startup_timeout = 600 s" in str(error.value)
    assert "Loading safetensors" in str(error.value)
    standing.engine.stop()
    wait_until(lambda: not any(map(alive, standing.journal.pids)))


def test_a_port_in_use_is_refused_at_once(stand: Stand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} of .*inference\.port"):
            stand(port=port)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"shift_tokens": 1}, r"tokenizer differs.*token 0 .* is \[98\] there and \[97\] here"),
        ({"max_model_len": 511}, r"context is 511 tokens, less than .*max_seq_len = 512"),
    ],
)
def test_a_server_of_our_own_is_looked_at_too(stand: Stand, how: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stand(how=how).start()


def test_a_server_that_cannot_tokenize_is_taken_at_its_word(stand: Stand) -> None:
    standing = stand(how={"fail": {"/tokenize": "no tokenizer"}}).start()
    assert standing.journal.calls("/tokenize")
    standing.engine.check()
