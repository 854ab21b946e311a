"""New weights reach the server in the right order, and no token is sampled by a mixture."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.inference.vllm.stand_in_engine import MODEL, Standing, ask
from tests.waiting import until
from vf.inference.completions import Completion
from vf.inference.token_client import TokenClient
from vf.inference.vllm.sites import ThisMachine
from vf.runtime.errors import ConfigError, EngineError, ModelError

Stand = Callable[..., Standing]
Serve = Callable[..., str]
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
SWAP = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]


def sampled_while(standing: Standing, count: int, act: Callable[[], None]) -> Completion:
    """Sample one completion, and act once it has begun."""

    async def run() -> Completion:
        sampler = standing.engine.sampler(30.0)
        completion = asyncio.create_task(ask(sampler, count))
        await until(lambda: standing.journal.begun)
        await asyncio.to_thread(act)
        try:
            return await completion
        finally:
            await sampler.close()

    return asyncio.run(run())


def test_every_version_of_an_adapter_has_a_name_and_a_folder_of_its_own(stand: Stand) -> None:
    standing = stand(rank=8).start()
    for number, version in ((4, 0), (5, 1), (6, 1), (7, 2)):
        standing.publish(number, version)
        assert standing.engine.serving.served.version == version
        completion = standing.sample()
        assert completion.token_ids == [number] * 2
        assert completion.versions == [version] * 2
    loads = [body for _, body in standing.journal.calls(LOAD)]
    assert len({body["lora_name"] for body in loads}) == 4
    assert len({body["lora_path"] for body in loads}) == 4
    assert all(set(body) == {"lora_name", "lora_path"} for body in loads), "nothing in place"
    unloads = [body["lora_name"] for _, body in standing.journal.calls(UNLOAD)]
    assert unloads == [body["lora_name"] for body in loads[:-1]]
    assert [Path(body["lora_path"]).exists() for body in loads] == [False] * 3 + [True]
    assert not standing.journal.calls(*SWAP), "nothing is paused for an adapter"


def test_the_new_adapter_is_loaded_before_the_old_one_goes(stand: Stand) -> None:
    standing = stand().start()
    for version in range(3):
        standing.publish(version, version)
    order = [path for path, _ in standing.journal.calls(LOAD, UNLOAD)]
    assert order == [LOAD, LOAD, UNLOAD, LOAD, UNLOAD]


@pytest.mark.slow
def test_an_adapter_stays_for_the_requests_that_began_with_it(stand: Stand) -> None:
    standing = stand(how={"token_seconds": 0.05}).start()
    standing.publish(4, 1)

    def publish_twice() -> None:
        standing.publish(5, 2)
        standing.publish(6, 3)

    completion = sampled_while(standing, 40, publish_twice)
    assert completion.token_ids == [4] * 40
    assert completion.versions == [1] * 40
    names = [body["lora_name"] for _, body in standing.journal.calls(LOAD)]
    unloaded = [body["lora_name"] for _, body in standing.journal.calls(UNLOAD)]
    assert unloaded == [names[1]], "the second was used by nobody, the first still was"
    standing.publish(7, 4)
    unloaded = [body["lora_name"] for _, body in standing.journal.calls(UNLOAD)]
    assert unloaded[1:] == [names[0], names[2]]


def test_a_model_is_read_again_while_the_server_holds_still(stand: Stand) -> None:
    standing = stand("disk").start()
    standing.publish(5, 3)
    calls = standing.journal.calls(*SWAP)
    assert [path for path, _ in calls] == SWAP
    bodies = [body for _, body in calls]
    assert bodies[0] == {"mode": "keep", "clear_cache": "true"}
    folder = Path(bodies[1]["kwargs"]["weights_path"])
    assert bodies[1] == {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    assert folder.is_absolute()
    assert bodies[2] == {"reset_running_requests": "true"}
    assert bodies[3] == {"new_version": "3"}
    completion = standing.sample()
    assert (completion.token_ids, completion.versions) == ([5, 5], [3, 3])
    assert standing.journal.calls("/inference/v1/generate")
    assert not standing.journal.calls("/v1/completions", LOAD)


@pytest.mark.parametrize("outside", [False, True])
def test_a_cache_that_is_kept_is_not_emptied_and_salted_by_version(
    stand: Stand, serve: Serve, outside: bool
) -> None:
    url = {"base_url": serve()} if outside else {}
    standing = stand("disk", keep_cache=True, **url).start()
    for number in (5, 6):
        standing.publish(number, number)
        assert standing.sample().token_ids == [number] * 2
    mode = "wait" if outside else "keep"
    assert (
        standing.journal.calls("/pause") == [("/pause", {"mode": mode, "clear_cache": "false"})] * 2
    )
    assert not standing.journal.calls("/reset_prefix_cache")
    path = "/v1/completions" if outside else "/inference/v1/generate"
    salts = [body.get("cache_salt") for _, body in standing.journal.calls(path)][-2:]
    assert all(salts)
    assert salts[0] != salts[1]


@pytest.mark.slow
def test_a_request_under_way_continues_with_the_new_weights_and_tells_which(stand: Stand) -> None:
    standing = stand("disk", {"token_seconds": 0.05}).start()
    standing.publish(1, 1)
    completion = sampled_while(standing, 40, lambda: standing.publish(2, 2))
    assert completion.token_ids == completion.versions
    assert completion.versions == sorted(completion.versions)
    assert set(completion.versions) == {1, 2}


def test_the_server_runs_on_if_it_cannot_read_the_new_weights(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ThisMachine, "dying", float("inf"))  # its end is not waited for
    standing = stand("disk", {"fail": {"/collective_rpc": "weights do not fit"}}).start()
    with pytest.raises(EngineError, match="answered 500: weights do not fit"):
        standing.publish(5, 1)
    paths = [path for path, _ in standing.journal.calls(*SWAP)]
    assert paths == ["/pause", "/collective_rpc", "/resume"]
    assert standing.engine.serving.served.version == 0
    assert len(standing.journal.starts) == 1, "a server that is well is not started again"


def test_a_server_of_somebody_elses_finishes_its_requests_first(stand: Stand, serve: Serve) -> None:
    standing = stand("disk", base_url=serve()).start()
    standing.publish(5, 3)
    assert [body["mode"] for _, body in standing.journal.calls("/pause")] == ["wait"]
    completion = standing.sample()
    assert (completion.token_ids, completion.versions) == ([5, 5], [3, 3])
    assert standing.journal.calls("/v1/completions")
    assert standing.weights.untied == [False]


@pytest.mark.slow
def test_while_it_is_drained_new_requests_wait_on_this_side(stand: Stand, serve: Serve) -> None:
    standing = stand("disk", base_url=serve(token_seconds=0.05)).start()
    standing.publish(1, 1)
    engine = standing.engine

    async def run() -> tuple[Completion, Completion]:
        sampler = TokenClient(engine.leases, max_retries=0)  # a refusal would be final
        early = asyncio.create_task(ask(sampler, 30))
        await until(lambda: standing.journal.begun)
        publishing = asyncio.create_task(asyncio.to_thread(standing.publish, 2, 2))
        await until(lambda: engine.serving.held)
        late = asyncio.create_task(ask(sampler))
        try:
            return await early, await late
        finally:
            await publishing
            await sampler.close()

    early, late = asyncio.run(run())
    assert (early.token_ids, early.versions) == ([1] * 30, [1] * 30)
    assert (late.token_ids, late.versions) == ([2, 2], [2, 2])
    assert not engine.serving.held


needs_no_vllm = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")


@needs_no_vllm
def test_where_nccl_cannot_start_weights_go_through_the_disk(stand: Stand) -> None:
    standing = stand("nccl").start()
    assert json.loads(standing.journal.flag("--weight-transfer-config") or "") == {
        "backend": "nccl"
    }
    standing.publish(5, 1)
    [note] = standing.noted
    assert "through the disk" in note
    assert "No module named 'vllm'" in note
    assert standing.journal.flag("--weight-transfer-config") is None, "it was started again"
    completion = standing.sample()
    assert (completion.token_ids, completion.versions) == ([5, 5], [1, 1])
    standing.publish(6, 2)
    assert standing.sample().token_ids == [6, 6]
    assert len(standing.journal.starts) == 2
    assert len(standing.noted) == 1


@needs_no_vllm
def test_nccl_that_was_asked_for_and_cannot_start_is_an_error_of_the_config(stand: Stand) -> None:
    standing = stand("nccl", publish="nccl").start()
    with pytest.raises(
        ConfigError, match=r'inference\.publish = "nccl" does not work here'
    ) as error:
        standing.publish(5, 1)
    assert "No module named 'vllm'" in str(error.value)
    assert len(standing.journal.starts) == 1


def test_on_a_cpu_a_copy_is_served_that_can_be_read_again(stand: Stand) -> None:
    standing = stand("disk")
    standing.weights.number = 8
    standing.start()
    assert standing.journal.flag("--tokenizer") == MODEL
    assert standing.journal.flag("--model") == str(standing.folder / "published" / "0-1")
    assert standing.weights.untied == [True]
    standing.publish(9, 1)
    assert standing.weights.untied == [True, True]
    assert standing.sample().token_ids == [9, 9]


@pytest.mark.parametrize("method", ["lora", "disk"])
def test_the_server_sleeps_while_the_trainer_trains(stand: Stand, method: str) -> None:
    standing = stand(method, sleep=True).start()
    standing.publish(5, 1)
    with standing.engine.training():
        assert standing.journal.calls("/sleep", "/wake_up") == [("/sleep", {"level": "1"})]
    assert standing.sample().token_ids == [5, 5]
    with pytest.raises(ZeroDivisionError), standing.engine.training():
        raise ZeroDivisionError
    paths = [path for path, _ in standing.journal.calls("/sleep", "/wake_up")]
    assert paths == ["/sleep", "/wake_up"] * 2


def test_without_sleep_the_server_answers_while_the_trainer_trains(stand: Stand) -> None:
    standing = stand().start()
    standing.publish(5, 1)
    with standing.engine.training():
        assert standing.sample().token_ids == [5, 5]
    assert not standing.journal.calls("/sleep", "/wake_up")


@pytest.mark.parametrize(
    ("how", "raised"),
    [
        ({"fail": {LOAD: "no space"}}, ConfigError),
        ({"fail": {UNLOAD: "busy"}}, EngineError),
    ],
)
def test_what_the_server_refuses_is_reported(
    stand: Stand, how: dict[str, Any], raised: type[Exception]
) -> None:
    standing = stand(how=how).start()
    if UNLOAD in how["fail"]:
        standing.publish(0, 0)
    with pytest.raises(raised, match=next(iter(how["fail"].values()))):
        standing.publish(1, 1)


def test_a_refused_completion_is_the_models_error_and_no_outage(stand: Stand) -> None:
    standing = stand(how={"hide": ["/v1/completions"]}).start()
    standing.publish(5, 1)
    with pytest.raises(ModelError, match="404") as error:
        standing.sample()
    assert error.type is ModelError
