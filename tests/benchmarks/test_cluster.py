"""The servers and the environment of the cluster's benchmark, and what it makes of its measures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest
import slow_server
from cluster_env import SimulatedTools
from cluster_watch import lateness

import vf
from tests.waiting import wait_until
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.ports import choose_port
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.inference.vllm.admin import Admin

SLOTS, ROLLOUTS = 4, 8


@pytest.fixture
def admin() -> Iterator[Admin]:
    """The control of a server with a few slots."""
    port = choose_port("127.0.0.1", 0)
    flags = ["--port", str(port), "--max-num-seqs", str(SLOTS), "--answer-seconds", "0.05"]
    with (
        subprocess.Popen([sys.executable, slow_server.__file__, *flags]) as process,
        closing(Admin(f"http://127.0.0.1:{port}/v1")) as admin,
    ):
        try:
            wait_until(admin.healthy)
            yield admin
        finally:
            process.kill()


def test_conversations_of_four_turns_wait_for_slots(
    admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_WATCH", str(tmp_path))
    admin.post("/v1/load_lora_adapter", {"lora_name": "tiny@1-1", "lora_path": "/nowhere"})
    assert admin.models() == ["tiny", "tiny@1-1"]
    environment = SimulatedTools(tasks=ROLLOUTS, tool_seconds=0.01)
    renderer = Renderer.from_pretrained(resolve_model("tiny"))

    async def run() -> tuple[list[vf.Trace], float]:
        client = TokenClient.to(f"{admin.root}/v1", "tiny@1-1")
        model = TokenModel(client, renderer, max_seq_len=1024)
        sampling = Sampling(max_tokens=64)
        started = asyncio.get_running_loop().time()
        try:
            traces = await asyncio.gather(
                *(
                    vf.rollout(environment, task, model, sampling=sampling)
                    for task in environment.tasks("train")
                )
            )
        finally:
            await client.close()
        return traces, asyncio.get_running_loop().time() - started

    traces, seconds = asyncio.run(run())
    assert [trace.reward for trace in traces] == [1.0] * ROLLOUTS
    assert {len(trace.turns) for trace in traces} == {4}
    assert {event.kind for trace in traces for event in trace.tool_events} == {"ok"}
    least = ROLLOUTS * 4 * 0.5 * 0.05 / SLOTS
    assert seconds > least, "more requests than slots were answered at once"


def write(path: Path, *pairs: tuple[float, float]) -> None:
    with path.open("wb") as file:
        array("d", chain(*pairs)).tofile(file)


def test_the_worst_loop_is_the_one_that_counts(tmp_path: Path) -> None:
    write(tmp_path / "a.f64", *[(0.001, 0.0)] * 200)
    write(tmp_path / "b.f64", *[(0.001, 0.0)] * 100, *[(0.04, 0.01)] * 2)
    found = lateness(tmp_path)
    assert found == {"p50": 0.001, "p99": 0.04, "own_p99": pytest.approx(0.03), "loops": 2}


def test_that_no_loop_was_watched_is_not_that_none_was_late(tmp_path: Path) -> None:
    assert lateness(tmp_path)["p99"] == float("inf")


def test_a_blocked_loop_counts_for_as_long_as_it_is_blocked(tmp_path: Path) -> None:
    write(tmp_path / "a.f64", *[(0.0, 0.0)] * 980, (1.0, 0.0))  # a second of fifty
    assert lateness(tmp_path)["p99"] == pytest.approx(0.5, abs=0.1)
