"""A server that dies is started again, with the newest weights, but not without end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inference.one_server import leased
from tests.inference.vllm.stand_in_engine import Standing, ask
from tests.waiting import until, wait_until
from vf.inference.token_client import TokenClient
from vf.inference.vllm import servers
from vf.runtime.errors import EngineError, ModelError, ServerDown

Stand = Callable[..., Standing]
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
CAUSE = "the device fell off the bus"


def dead(standing: Standing) -> bool:
    """Return whether the engine can see that its server has died."""
    return standing.engine._server.is_gone()


def kill(standing: Standing) -> None:
    """Kill the server, and wait until that can be seen."""
    os.kill(standing.journal.pids[0], signal.SIGKILL)
    wait_until(lambda: dead(standing))


def available(standing: Standing) -> None:
    """Wait until requests are let through."""
    asyncio.run(asyncio.wait_for(standing.engine.leases.available(), 60.0))


def impatient(standing: Standing) -> TokenClient:
    """Return a client that does not ask again by itself."""
    return TokenClient(standing.engine.leases, max_retries=0)


def second_life(standing: Standing) -> list[tuple[str, dict[str, Any]]]:
    """Return the requests since the latest start."""
    entries = standing.journal.entries()
    last = max(index for index, entry in enumerate(entries) if "start" in entry)
    return [(e["path"], e["body"] or {}) for e in entries[last:] if "path" in e]


def test_it_is_back_with_the_newest_adapter(stand: Stand) -> None:
    standing = stand().start()
    for version in range(3):
        standing.publish(version + 10, version)
    standing.engine.check()
    assert len(standing.journal.starts) == 1
    kill(standing)
    standing.engine.check()
    assert len(standing.journal.starts) == 2
    newest = standing.journal.calls(LOAD)[2]
    assert [call for call in second_life(standing) if call[0] == LOAD] == [newest]
    completion = standing.sample()
    assert (completion.token_ids, completion.versions) == ([12, 12], [2, 2])
    standing.publish(20, 3)
    assert standing.sample().token_ids == [20, 20]
    assert standing.journal.calls(UNLOAD)[-1][1]["lora_name"] == newest[1]["lora_name"]
    standing.engine.check()
    assert len(standing.journal.starts) == 2


def test_it_is_back_with_the_newest_model(stand: Stand) -> None:
    standing = stand("disk").start()
    standing.publish(11, 1)
    standing.publish(12, 2)
    kill(standing)
    standing.engine.check()
    assert ("/update_weight_version", {"new_version": "2"}) in second_life(standing)
    completion = standing.sample()
    assert (completion.token_ids, completion.versions) == ([12, 12], [2, 2])


def test_a_crash_before_the_first_publish(stand: Stand) -> None:
    standing = stand().start()
    kill(standing)
    standing.publish(10, 0)
    assert standing.sample().token_ids == [10, 10]
    assert len(standing.journal.starts) == 2


def test_adapters_of_requests_that_died_are_not_kept(stand: Stand) -> None:
    standing = stand().start()
    with leased(standing.engine.serving):
        standing.publish(10, 0)
        with leased(standing.engine.serving):
            standing.publish(11, 1)
            kill(standing)
            standing.engine.check()
    folders = [Path(body["lora_path"]) for _, body in standing.journal.calls(LOAD)]
    assert [folder.exists() for folder in folders] == [False, True, True]
    standing.publish(12, 2)
    unloaded = [body["lora_name"] for _, body in standing.journal.calls(UNLOAD)]
    assert unloaded == [standing.journal.calls(LOAD)[1][1]["lora_name"]]


def test_requests_in_flight_are_lost_to_an_outage(stand: Stand) -> None:
    standing = stand("lora", {"token_seconds": 0.1}).start()
    standing.publish(10, 0)
    engine = standing.engine

    async def run() -> None:
        sampler = impatient(standing)
        requests = [asyncio.create_task(ask(sampler, 100)) for _ in range(3)]
        await until(lambda: standing.journal.begun == 3)
        engine.serving.down()  # as the check below does, which may be slower than the requests
        await asyncio.to_thread(kill, standing)
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [ServerDown] * 3
        with pytest.raises(ServerDown, match="started again"):
            await ask(sampler)
        await asyncio.to_thread(engine.check)
        await asyncio.wait_for(engine.leases.available(), 60.0)
        assert (await ask(sampler, 1)).token_ids == [10]
        await sampler.close()

    asyncio.run(run())
    assert not engine.serving.in_use(engine.serving.served.model)


def test_requests_are_refused_as_soon_as_it_has_died(stand: Stand) -> None:
    standing = stand().start()
    standing.publish(10, 0)
    kill(standing)
    wait_until(lambda: not standing.engine.serving.is_up)  # while the trainer does something else
    with pytest.raises(ServerDown):
        standing.sample(sampler=impatient(standing))
    standing.engine.check()
    assert standing.sample().token_ids == [10, 10]


def test_it_may_die_again_and_again_in_a_long_run(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "HOUR", 0.0)
    standing = stand(restarts_per_hour=1).start()
    for version in range(3):
        standing.publish(10 + version, version)
        kill(standing)
        standing.engine.check()
        assert standing.sample().token_ids == [10 + version] * 2
    assert len(standing.journal.starts) == 4


def test_a_crash_too_many_ends_the_run_with_its_cause(stand: Stand) -> None:
    standing = stand(how={"die_at": {"/v1/completions": 2}}, restarts_per_hour=1).start()
    standing.publish(10, 0)
    for starts in (1, 2):
        standing.engine.check()
        available(standing)
        assert len(standing.journal.starts) == starts
        with pytest.raises(ModelError):
            standing.sample(sampler=impatient(standing))
        wait_until(lambda: dead(standing))
    with pytest.raises(EngineError, match=CAUSE) as error:
        standing.engine.check()
    assert "exit code 70" in str(error.value)
    assert "inference.restarts_per_hour = 1" in str(error.value)
    with pytest.raises(ServerDown, match=CAUSE):
        available(standing)
    with pytest.raises(ServerDown, match=CAUSE), leased(standing.engine.serving):
        pass
    assert len(standing.journal.starts) == 2


def test_a_server_that_dies_while_it_starts_again_is_restarted(stand: Stand) -> None:
    how = {"last_words": "OSError: port in use", "last_life": 2, "well_again": 4}
    standing = stand(how=how).start()
    standing.publish(10, 0)
    kill(standing)
    standing.engine.check()
    assert standing.sample().token_ids == [10, 10]
    assert len(standing.journal.starts) == 4


def test_a_server_that_refuses_its_flags_is_not_restarted(stand: Stand) -> None:
    standing = stand(how={"last_words": "usage", "last_life": 2, "exit_code": 2}).start()
    kill(standing)
    with pytest.raises(EngineError, match="Starting it again failed"):
        standing.engine.check()
    assert len(standing.journal.starts) == 2


def test_a_server_that_cannot_be_started_again_ends_the_run(stand: Stand) -> None:
    standing = stand(how={"last_words": "OSError: no space left", "last_life": 2}).start()
    standing.publish(10, 0)
    kill(standing)
    with pytest.raises(EngineError) as error:
        standing.engine.check()
    assert "exit code 137" in str(error.value)
    assert "Starting it again failed" in str(error.value)
    assert "OSError: no space left" in str(error.value)
    assert "inference.restarts_per_hour = 3" in str(error.value)
    assert len(standing.journal.starts) == 4
    with pytest.raises(ServerDown, match="no space left"):
        available(standing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "how"),
    [
        ("lora", LOAD, {"grandchild": True}),
        ("lora", UNLOAD, {}),
        ("disk", "/collective_rpc", {}),
        ("disk", "/pause", {"dying": 0.3}),
    ],
)
def test_a_crash_in_a_publish_is_survived(
    stand: Stand, method: str, path: str, how: dict[str, Any]
) -> None:
    standing = stand(method, {"die_at": {path: 1}, **how}).start()
    for version in range(2):
        standing.publish(version + 10, version)
    assert len(standing.journal.starts) == 2
    completion = standing.sample()
    assert (completion.token_ids, completion.versions) == ([11, 11], [1, 1])
    names = [body["lora_name"] for _, body in standing.journal.calls(LOAD)]
    assert len(set(names)) == len(names) - (method == "lora"), "only a restored one is loaded twice"


def test_a_publish_that_always_kills_the_server_ends_the_run(stand: Stand) -> None:
    standing = stand(how={"die_at": {LOAD: 2}}, restarts_per_hour=1).start()
    with pytest.raises(EngineError, match=CAUSE) as error:
        standing.publish(10, 0)
    assert "inference.restarts_per_hour = 1" in str(error.value)
    assert len(standing.journal.starts) == 2


def test_a_server_that_died_in_its_sleep_is_started_again_after_the_training(stand: Stand) -> None:
    standing = stand(sleep=True).start()
    standing.publish(10, 0)
    with standing.engine.training():
        kill(standing)
    with standing.engine.training():
        assert len(standing.journal.starts) == 1, "it has the time until it is needed"
    standing.publish(11, 1)
    assert len(standing.journal.starts) == 2
    assert standing.sample().token_ids == [11, 11]
