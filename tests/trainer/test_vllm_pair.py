"""Training through two real vLLM servers on a CPU, of which one is killed and taken back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import psutil
import pytest

import vf
from tests.trainer.test_vllm_training import answers, inference, server_processes
from tests.waiting import wait_until
from vf.inference.vllm.replicated_engine import ReplicatedEngine
from vf.trainer.rl_trainer import RLTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STARTING = 600.0  # seconds


@pytest.mark.parametrize("use_lora", [True, False], ids=["lora", "disk"])
def test_one_of_two_servers_is_killed_and_taken_back(
    make_trainer: Callable[..., RLTrainer], vllm_python: str, use_lora: bool
) -> None:
    trainer = make_trainer(
        inference=inference(vllm_python, replicas=2, env={"VLLM_CPU_KVCACHE_SPACE": "1"}),
        use_lora=use_lora,
        learning_rate=1e-3 if use_lora else 3e-4,
        max_steps=8,
        batch_size=32,
        max_tokens=32,
    )
    engine = trainer.engine
    assert isinstance(engine, ReplicatedEngine)
    lines = [trainer.step() for _ in range(2)]
    servers = server_processes()
    assert len(servers) == 2

    def kill_in_the_middle() -> None:
        wait_until(lambda: all(each.serving.under_way > 3 for each in engine.members))
        os.kill(servers[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    lines.append(trainer.step())
    killer.join()
    assert len(engine.samplers(1.0)) == 1, "the step did not wait for it"
    lines.append(trainer.step())

    def is_back() -> bool:
        engine.check()
        return len(engine.samplers(1.0)) == 2

    wait_until(is_back, STARTING)
    assert {member.served.version for member in engine.members} == {4}, "what it missed, too"
    used = [_tokens(member.base_url) for member in engine.members]
    lines.append(trainer.step())
    assert all(_tokens(m.base_url) > before for m, before in zip(engine.members, used, strict=True))

    assert max(line["logprob_gap"] for line in lines) < 1e-4, "of either server"
    assert [(line["rollouts/scored"], line["rollouts/failed"]) for line in lines] == [(32, 0)] * 5
    assert "is retried" not in trainer.folder.trainer_log.read_text(), "only requests were moved"
    for step in range(1, 6):
        traces: list[vf.Trace] = list(trainer.folder.step_traces(step))
        assert len({trace.id for trace in traces}) == 32
        assert {v for answer in answers(traces) for v in answer} == {step - 1}
    servers += server_processes()
    trainer.close()
    _, alive = psutil.wait_procs(servers, timeout=60)
    assert not alive


def _tokens(base_url: str) -> float:
    """Return how many tokens a server has sampled since it was started."""
    import httpx

    text = httpx.get(base_url.removesuffix("/v1") + "/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if "vllm:generation_tokens_total{" in line]
    return sum(float(line.split()[-1]) for line in lines)
