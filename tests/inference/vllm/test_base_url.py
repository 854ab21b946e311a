"""A server that somebody else runs: it is used as it is, or refused with the reason."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.inference.one_server import leased
from tests.inference.vllm.stand_in_engine import MODEL, Standing
from tests.waiting import alive, wait_until
from vf.inference.ports import choose_port
from vf.runtime.errors import ConfigError, EngineError, ServerDown

Stand = Callable[..., Standing]
Serve = Callable[..., str]
LORA = ("--enable-lora", "--max-lora-rank", "8")


def kill(pid: int) -> None:
    """Kill a server, and wait until its port is free."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))


@pytest.mark.parametrize("ending", ["/v1", "/v1/", ""])
def test_it_is_used_and_left_running(stand: Stand, serve: Serve, ending: str) -> None:
    standing = stand(base_url=serve(*LORA).removesuffix("/v1") + ending).start()
    standing.publish(5, version=1)
    assert standing.sample().token_ids == [5, 5]
    standing.engine.stop()
    assert len(standing.journal.starts) == 1
    again = stand(base_url=standing.engine.base_url).start()
    assert again.journal.calls("/v1/models")


def test_a_server_that_is_away_for_a_while_is_waited_for(stand: Stand, serve: Serve) -> None:
    url = serve(*LORA)
    standing = stand(base_url=url).start()
    standing.publish(5, version=1)
    engine, port = standing.engine, int(url.split(":")[2].split("/")[0])
    kill(standing.journal.pids[0])
    wait_until(lambda: not engine.serving.is_up)
    with pytest.raises(ServerDown), leased(engine.serving):
        pass
    with ThreadPoolExecutor() as pool:
        checking = pool.submit(engine.check)
        serve(*LORA, port=port)
        checking.result()
    assert standing.sample().token_ids == [5, 5], "its new life has the adapter too"


def test_a_publish_waits_for_a_server_that_is_away(stand: Stand, serve: Serve) -> None:
    url = serve(*LORA)
    standing = stand(base_url=url).start()
    standing.publish(5, version=1)
    kill(standing.journal.pids[0])
    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(standing.publish, 6, 2)
        serve(*LORA, port=int(url.split(":")[2].split("/")[0]))
        publishing.result()
    assert standing.sample().token_ids == [6, 6]


def test_a_server_that_was_only_out_of_reach_keeps_what_it_has(stand: Stand, serve: Serve) -> None:
    standing = stand(base_url=serve(*LORA)).start()
    standing.publish(5, version=1)
    standing.engine.serving.down()
    standing.engine.check()
    assert len(standing.journal.calls("/v1/load_lora_adapter")) == 1
    assert standing.sample().token_ids == [5, 5]


def test_a_server_that_stays_away_ends_the_run(stand: Stand, serve: Serve) -> None:
    standing = stand(base_url=serve(*LORA), away_timeout=0.2).start()
    kill(standing.journal.pids[0])
    wait_until(lambda: not standing.engine.serving.is_up)
    with pytest.raises(EngineError, match=r"did not answer for inference\.away_timeout = 0\.2 s"):
        standing.engine.check()
    with pytest.raises(ServerDown, match="away_timeout"), leased(standing.engine.serving):
        pass


def test_nothing_listens(stand: Stand) -> None:
    url = f"http://127.0.0.1:{choose_port('127.0.0.1', 0)}/v1"
    with pytest.raises(ConfigError, match="no server answers at 'http") as error:
        stand(base_url=url).start()
    assert url in str(error.value)


NOT_LISTS: list[Any] = [{"hello": "world"}, [], "hello", {"data": [{}]}, {"data": 3}]


@pytest.mark.parametrize(
    ("server", "run", "words"),
    [
        *(
            ({"models": listed}, {}, "the server at 'http.* is not OpenAI-compatible")
            for listed in NOT_LISTS
        ),
        (
            {"name": "other/model"},
            {},
            f"serves other/model, but not 'org/model'.* --served-model-name {MODEL}",
        ),
        ({"shift_tokens": 1}, {}, "tokenizer differs"),
        ({}, {"encoded": ("ab", [97, 98, 99])}, r"token 2 .* is \[\] there and \[99\] here"),
        ({}, {"encoded": ("ab", [97])}, r"token 1 .* is \[98\] there and \[\] here"),
    ],
)
def test_a_server_that_is_another_is_refused(
    stand: Stand, serve: Serve, server: Any, run: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        stand(base_url=serve(**server), **run).start()


def test_a_path_that_does_not_exist(stand: Stand, serve: Serve) -> None:
    url = serve().removesuffix("/v1") + "/elsewhere/v1"
    with pytest.raises(ConfigError, match=r"/elsewhere/v1/models answered 404"):
        stand(base_url=url).start()


def test_a_context_that_is_too_small(stand: Stand, serve: Serve) -> None:
    url = serve("--max-model-len", "511")
    with pytest.raises(ConfigError, match="context is 511 tokens, less than trainer"):
        stand(base_url=url).start()
    stand(base_url=url, max_seq_len=511).start()


def test_a_missing_or_wrong_key_names_the_setting(
    stand: Stand, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(*LORA, api_key="secret")
    with pytest.raises(ConfigError, match=r"401: Unauthorized; .*inference\.api_key_env"):
        stand(base_url=url).start()
    monkeypatch.setenv("MY_KEY", "wrong")
    with pytest.raises(ConfigError, match=r"401.*inference\.api_key_env") as error:
        stand(base_url=url, api_key_env="MY_KEY").start()
    assert "wrong" not in str(error.value)
    monkeypatch.setenv("MY_KEY", "secret")
    standing = stand(base_url=url, api_key_env="MY_KEY").start()
    standing.publish(5, version=1)
    assert standing.sample().token_ids == [5, 5]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--enable-lora", "--max-lora-rank", "8"), "LoRA rank 32 is greater than max_lora_rank 8"),
        ((), "--enable-lora"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_by_the_first_publish(
    stand: Stand, serve: Serve, flags: tuple[str, ...], said: str
) -> None:
    standing = stand(base_url=serve(*flags), rank=32).start()
    with pytest.raises(ConfigError) as error:
        standing.publish(5, version=0)
    assert said in str(error.value)
    assert "--max-lora-rank of at least trainer.args.lora_rank" in str(error.value)
    assert standing.engine.serving.served.model == MODEL


def test_a_server_that_cannot_be_paused_gets_an_error_that_says_how(
    stand: Stand, serve: Serve
) -> None:
    url = serve(hide=["/pause"])
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        stand("disk", base_url=url).start().publish(5, version=0)
