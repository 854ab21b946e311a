"""Several servers as one engine: all have the same weights, and one may die while others answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.inference.vllm.stand_in_engine import StandingTogether, ask
from tests.waiting import alive, until, wait_until
from vf.inference.completions import Completion
from vf.inference.model import Sampling
from vf.inference.ports import choose_port
from vf.inference.reference_sample import ReferenceSample
from vf.inference.settings import VllmSettings
from vf.inference.token_client import TokenClient
from vf.inference.vllm.server_args import each_server
from vf.runtime.errors import ConfigError, EngineError, ServerDown

Stand = Callable[..., StandingTogether]
Serve = Callable[..., str]
LOAD = "/v1/load_lora_adapter"


async def many(client: TokenClient, count: int, tokens: int = 2) -> list[Completion]:
    """Sample in conversations of their own, and close the client."""
    work = [
        client.complete([1, 2, 3], Sampling(max_tokens=tokens), [0], f"c{n}") for n in range(count)
    ]
    try:
        return await asyncio.gather(*work)
    finally:
        await client.close()


@pytest.mark.parametrize("method", ["lora", "disk"])
def test_every_server_has_a_version_that_was_published_and_it_was_written_once(
    stand_together: Stand, method: str
) -> None:
    standing = stand_together(method).start()
    before = len(standing.weights.untied)
    for version in range(2):
        standing.publish(version + 4, version)
        assert [standing.sample_of(n).token_ids for n in range(3)] == [[version + 4] * 2] * 3
        assert [standing.sample_of(n).versions for n in range(3)] == [[version] * 2] * 3
        folders = list((standing.folder / "published").iterdir())
        assert len(folders) == 1, "all have unloaded the old one"
    assert len(standing.weights.untied) == before + 2
    logs = sorted(path.name for path in (standing.folder / "logs").iterdir())
    assert logs == ["inference-1.log", "inference-2.log", "inference.log"]
    assert {said.partition(":")[0] for said in standing.said} <= {
        f"server {n} of 3" for n in (1, 2, 3)
    }


def test_requests_are_spread_over_the_servers(stand_together: Stand) -> None:
    standing = stand_together(how={"token_seconds": 0.02}).start()
    standing.publish(4, 0)
    asyncio.run(many(standing.engine.sampler(30.0), 12))
    counts = [len(journal.calls("/v1/completions")) for journal in standing.journals]
    assert counts == [4, 4, 4]


@pytest.mark.parametrize("method", ["lora", "disk"])
def test_one_that_dies_is_left_out_and_taken_back_with_what_was_published_meanwhile(
    stand_together: Stand, method: str
) -> None:
    standing = stand_together(method).start()
    standing.publish(4, 0)
    standing.kill(1)
    standing.publish(5, 1)  # the others have it, and it is not waited for
    found = asyncio.run(many(standing.engine.sampler(30.0), 6))
    assert [each.token_ids for each in found] == [[5, 5]] * 6
    standing.wait_for(1)
    assert (standing.sample_of(1).token_ids, standing.sample_of(1).versions) == ([5, 5], [1, 1])
    assert [len(journal.starts) for journal in standing.journals] == [1, 2, 1]
    standing.publish(6, 2)
    assert [standing.sample_of(n).token_ids for n in range(3)] == [[6, 6]] * 3


def test_requests_under_way_at_one_that_dies_are_answered_by_the_others(
    stand_together: Stand,
) -> None:
    standing = stand_together(how={"token_seconds": 0.02}).start()
    standing.publish(4, 0)

    async def run() -> list[Completion]:
        client = standing.engine.sampler(30.0)
        asked = asyncio.create_task(many(client, 9, tokens=20))
        await until(lambda: all(journal.begun == 3 for journal in standing.journals))
        os.kill(standing.journals[0].pids[0], signal.SIGKILL)
        return await asked

    assert [each.token_ids for each in asyncio.run(run())] == [[4] * 20] * 9
    again = Counter(len(j.calls("/v1/completions")) for j in standing.journals[1:])
    assert sum(count * times for count, times in again.items()) == 9


@pytest.mark.slow
@pytest.mark.gate
def test_a_version_that_is_published_while_one_comes_back_reaches_it_before_any_request(
    stand_together: Stand,
) -> None:
    standing = stand_together(how={"starting": 0.3}).start()
    standing.publish(4, 0)
    standing.kill(2)
    member = standing.engine.members[2]
    seen: list[int] = []
    back = member.take_back

    def note() -> None:
        seen.append(member.served.version)
        back()

    member.take_back = note  # type: ignore[method-assign]
    version = 0
    standing.engine.check()
    while not member.serving.is_up:
        version += 1
        standing.publish(4 + version, version)
    assert version
    assert seen[0] in (version - 1, version)
    assert standing.sample_of(2).token_ids == [4 + version] * 2


class Group:
    """A group with the workers of a server that has died since."""

    device = "cpu"
    left = False

    def destroy(self) -> None:
        self.left = True


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_nothing_is_sent_to_the_workers_that_one_had_before_it_died(stand_together: Stand) -> None:
    standing = stand_together("nccl", replicas=2).start()
    member, group = standing.engine.members[0], Group()
    member.delivery._publisher._group = group  # type: ignore[attr-defined]
    standing.kill(0)
    standing.engine.check()
    wait_until(lambda: member in standing.engine._bare)
    standing.publish(5, 1)  # it cannot meet the new ones without vLLM, so the disk takes over
    assert group.left
    assert len(standing.journals[0].calls("/pause")) == 1, "for the disk"
    assert standing.sample_of(0).token_ids == [5, 5]


def test_a_publish_with_all_servers_gone_waits_for_one(stand_together: Stand) -> None:
    standing = stand_together().start()
    standing.publish(4, 0)
    for number in range(3):
        standing.kill(number)
    with pytest.raises(ServerDown):
        standing.sample_of(0)
    standing.publish(5, 1)
    assert asyncio.run(many(standing.engine.sampler(30.0), 1))[0].token_ids == [5, 5]


def test_one_that_dies_too_often_is_given_up_and_the_last_ends_the_run(
    stand_together: Stand,
) -> None:
    standing = stand_together(replicas=2, restarts_per_hour=0).start()
    standing.publish(4, 0)
    standing.kill(0)
    standing.engine.check()
    wait_until(lambda: bool(standing.noted))
    assert "is given up" in standing.noted[0]
    assert "inference.restarts_per_hour = 0" in standing.noted[0]
    standing.publish(5, 1)
    assert asyncio.run(many(standing.engine.sampler(30.0), 4))[3].token_ids == [5, 5]
    standing.kill(1)

    def ends() -> bool:
        try:
            standing.engine.check()
        except EngineError as error:
            return "none of the 2 vLLM servers is left" in str(error)
        return False

    wait_until(ends)
    with pytest.raises(ServerDown, match="restarts_per_hour"):
        asyncio.run(standing.engine.leases.available())


def reference(version: int, number: int, logprob: float = -0.5) -> ReferenceSample:
    return ReferenceSample(
        version, [1], Sampling(max_tokens=2, seed=0), [0], [number] * 2, [logprob] * 2, 0.1
    )


def test_one_that_answers_as_other_weights_would_is_not_taken_back(stand_together: Stand) -> None:
    standing = stand_together(replicas=2).start()
    standing.publish(5, 1)
    standing.engine.remember(reference(1, 5))
    standing.kill(0)
    standing.wait_for(0)
    assert not standing.noted
    standing.engine.remember(reference(1, 5, -0.7))
    standing.kill(0)
    standing.engine.check()
    wait_until(lambda: bool(standing.noted))
    assert "logprobs differ from the trainer's" in standing.noted[0]
    assert not standing.engine.members[0].serving.is_up


def test_one_whose_first_token_is_another_is_taken_back_for_the_next_publish_to_try(
    stand_together: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    standing = stand_together(replicas=2).start()
    standing.publish(5, 1)
    standing.engine.remember(reference(1, 7))
    standing.kill(0)
    standing.wait_for(0)
    assert "sampled another first token" in caplog.text
    assert not standing.noted


def test_each_server_that_can_be_asked_has_a_sampler_of_its_own(stand_together: Stand) -> None:
    standing = stand_together().start()
    standing.publish(4, 0)

    async def run(count: int) -> None:
        samplers = standing.engine.samplers(30.0)
        assert len(samplers) == count
        for sampler in samplers.values():
            await ask(sampler)
            await sampler.close()

    asyncio.run(run(3))
    assert [len(j.calls("/v1/completions")) for j in standing.journals] == [1, 1, 1]
    standing.kill(0)
    asyncio.run(run(2))


def test_one_that_does_not_start_ends_the_others(stand_together: Stand) -> None:
    standing = stand_together(how={"fail": {"/v1/models": "broken"}})
    with pytest.raises(ConfigError, match="broken"):
        standing.start()
    starts = [start for journal in standing.journals for start in journal.starts]
    assert starts
    assert not any(alive(pid) for start in starts for pid in start["pids"])


def test_nothing_is_left_when_it_is_stopped_while_one_comes_back(stand_together: Stand) -> None:
    standing = stand_together(how={"starting": 0.2}).start()
    standing.publish(4, 0)
    standing.kill(0)
    standing.engine.check()
    wait_until(lambda: len(standing.journals[0].starts) == 2)
    standing.engine.stop()
    assert not any(alive(pid) for journal in standing.journals for pid in journal.pids)
    assert not standing.noted


def test_servers_of_somebody_elses_are_used_together(stand_together: Stand, serve: Serve) -> None:
    flags = ("--enable-lora", "--max-lora-rank", "8")
    urls = [serve(*flags, separate=True), serve(*flags, separate=True)]
    standing = stand_together(base_urls=urls).start()
    standing.publish(4, 0)
    pid, port = standing.journals[0].pids[0], int(urls[0].split(":")[2].split("/")[0])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not (alive(pid) or standing.engine.members[0].serving.is_up))
    standing.publish(5, 1)
    assert standing.sample_of(1).token_ids == [5, 5]
    serve(*flags, port=port, separate=True)
    standing.wait_for(0)
    assert standing.sample_of(0).token_ids == [5, 5]
    assert [len(journal.calls(LOAD)) for journal in standing.journals] == [2, 2]


def test_one_that_refuses_the_weights_when_it_is_back_is_given_up(
    stand_together: Stand, serve: Serve
) -> None:
    flags = ("--enable-lora", "--max-lora-rank", "8")
    urls = [serve(*flags, separate=True), serve(*flags, separate=True)]
    standing = stand_together(base_urls=urls).start()
    standing.publish(4, 0)
    standing.kill(0)
    serve(port=int(urls[0].split(":")[2].split("/")[0]), separate=True)  # without adapters
    standing.engine.check()
    wait_until(lambda: bool(standing.noted))
    assert "does not take the adapter" in standing.noted[0]
    assert "must run with --enable-lora" in (standing.engine.members[0].serving.failure or "")
    standing.publish(5, 1)
    assert len(standing.journals[0].calls(LOAD)) == 2, "it is not asked again"
    assert standing.sample_of(1).token_ids == [5, 5]


@pytest.mark.slow
def test_a_server_that_preempts_is_sent_fewer_requests(stand_together: Stand) -> None:
    standing = stand_together(replicas=2, how={"token_seconds": 0.02, "cache": 8}).start()
    standing.publish(4, 0)
    first = standing.engine.members[0].serving

    async def run() -> None:
        asked = asyncio.create_task(many(standing.engine.sampler(60.0), 1000, tokens=25))
        await until(lambda: first.under_way > 20)
        await until(lambda: first.under_way <= 8)
        assert not asked.done()
        asked.cancel()
        await asyncio.wait([asked])

    asyncio.run(run())


def test_the_settings_are_divided(tmp_path: Path) -> None:
    port = choose_port("127.0.0.1", 0)
    settings = VllmSettings(replicas=2, gpus=[4, 5, 6, 7], gpus_per_replica=2, port=port)
    assert [(each.gpus, each.port) for each in each_server(settings)] == [
        ([4, 5], port),
        ([6, 7], port + 1),
    ]
    assert all(each_server(each) == [each] for each in each_server(settings))
    two = VllmSettings(base_urls=["http://a/v1", "http://b/v1"], api_key_env="KEY")
    assert [each.base_url for each in each_server(two)] == two.urls
