"""Training through a real vLLM server on a CPU: token-exact, in flight, and after a crash."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

import vf
from vf.environments.environment import Split
from vf.inference.completions import Completion
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.wire import JsonClient
from vf.runtime.errors import ConfigError
from vf.trainer.collecting.runners import InProcess
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.teacher import TeacherServer
from vf.trainer.rl_trainer import RLTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class LongAnswers(vf.Environment):
    """Two turns of as many tokens as allowed."""

    max_turns = 2
    rubric = vf.Rubric(outcome=lambda trace: 0.5)

    def tasks(self, split: Split) -> Any:
        for index in range(8):
            yield vf.Task(f"{split}-{index}", "Compute 17 - (13 * 9).")

    def step(self, reply: vf.Message) -> vf.Step:
        return vf.Step([vf.Message("user", "Go on.")])


vf.register("test-long-answers", LongAnswers)


def inference(python: str, **settings: Any) -> dict[str, Any]:
    return {"engine": "vllm", "python": python, "startup_timeout": 600, **settings}


def check_as_teacher(trainer: RLTrainer) -> None:
    """Check that a server says, as a teacher, what the weights say that it has."""
    samples = vf.samples(trainer.folder.step_traces(4), lambda rewards: [1.0] * len(rewards))
    engine, tokenizer = trainer.engine, trainer.plan.renderer.tokenizer

    async def ask() -> list[Sample]:
        lease = await engine.leases.take("")
        args = trainer.args.model_copy(
            update={
                "teacher_model": lease.served.model,
                "teacher_base_url": engine.base_url,
                "max_seq_len": trainer.args.max_seq_len - 1,
                "teacher_loss": "forward_kl",
            }
        )
        teacher = TeacherServer(args)
        too_short = TeacherServer(args.model_copy(update={"max_seq_len": 384}))
        too_many = TeacherServer(args.model_copy(update={"teacher_top_k": 21}))
        try:
            teacher.check(tokenizer)
            with pytest.raises(ConfigError, match="start it with --max-model-len 385 or more"):
                too_short.check(tokenizer)
            with pytest.raises(ConfigError, match="start vLLM's with --max-logprobs 21 or more"):
                too_many.check(tokenizer)
            return await teacher.ask(samples)
        finally:
            await engine.leases.give_back(lease)
            await teacher.close()
            await too_short.close()
            await too_many.close()

    taught, policy = asyncio.run(ask()), trainer.policy
    for sample, own in zip(taught, policy.sample_logprobs(samples), strict=True):
        assert sample.teacher_logprobs == pytest.approx(own.tolist(), abs=1e-4)
    policy.forward.likeliest = trainer.args.teacher_top_k
    try:
        with torch.no_grad(), policy.forward.active():
            [batch] = pack(taught, 10**6)
            mine = policy.forward(batch, 1.0).likeliest
    finally:
        policy.forward.likeliest = 0
    assert mine is not None
    assert batch.likeliest is not None
    torch.testing.assert_close(mine.logprobs, batch.likeliest.logprobs, rtol=0, atol=1e-4)
    assert (mine.ids == batch.likeliest.ids).float().mean() > 0.99  # but for ties


SAMPLING = Sampling(24, temperature=2.0, top_p=0.9, top_k=12, min_p=0.02, seed=0, trained=True)
FILTERS: dict[str, Any] = {"top_p": 0.9, "top_k": 20, "min_p": 0.01}


def server_processes() -> list[psutil.Process]:
    """Return the running servers' API processes that this process is an ancestor of."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if "vllm.entrypoints.openai.api_server" in process.cmdline()
        and "lifeline.py" not in " ".join(process.cmdline())
    ]


def answers(traces: Iterable[vf.Trace]) -> list[list[int]]:
    """Return the weight versions behind the tokens of every answer."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for number, trace in enumerate(traces):
        for which, branch in enumerate(trace.branches):
            for place in range(len(branch)):
                if branch.loss_mask[place]:
                    key = number, which, branch.turn_index[place]
                    found.setdefault(key, []).append(branch.weight_version[place])
    return list(found.values())


def assert_trained_as_sampled(trainer: RLTrainer, lines: list[Any]) -> None:
    """Check that the trainer computes over what the server's filters left."""
    traces = [*trainer.folder.step_traces(1)]
    supports = [s for trace in traces for branch in trace.branches for s in branch.supports if s]
    assert {len(support) for support in supports} > {1}
    assert max(map(len, supports)) <= FILTERS["top_k"]
    for line in lines:
        assert line["ratio/min"] == pytest.approx(1.0, abs=5e-5)  # rounding, as without filters
        assert line["ratio/max"] == pytest.approx(1.0, abs=5e-5)


def left(logprobs: torch.Tensor) -> list[int]:
    """Return the ids that min-p, top-k and top-p leave, one after the other."""
    order = logprobs.argsort(descending=True).tolist()
    order = [i for i in order if logprobs[i] >= logprobs[order[0]] + math.log(SAMPLING.min_p)]
    order = order[: SAMPLING.top_k]
    shares = logprobs[order].softmax(-1).tolist()
    return sorted(
        token for place, token in enumerate(order) if sum(shares[:place]) < SAMPLING.top_p
    )


def check_supports(trainer: RLTrainer) -> None:
    """Check what a server's filters left, and its log-probabilities, against the model's logits."""
    prompt = trainer.plan.probe_ids

    async def ask() -> Completion:
        [sampler] = trainer.engine.samplers(60.0).values()
        try:
            return await sampler.complete(prompt, SAMPLING, [])
        finally:
            await sampler.close()

    got = asyncio.run(ask())
    ids = torch.tensor([prompt + got.token_ids])
    with torch.no_grad():
        logits = trainer.learner.policy.model(ids).logits[0, len(prompt) - 1 : -1]
    for row, token, logprob, kept in zip(
        (logits.double() / 2.0).log_softmax(-1),
        got.token_ids,
        got.logprobs,
        got.supports,
        strict=True,
    ):
        assert sorted(kept) == left(row)
        share = row[kept].log_softmax(-1)[kept.index(token)]
        assert logprob == pytest.approx(float(share), abs=1e-4)
    assert {len(kept) for kept in got.supports} > {1}


def straddles(trace: vf.Trace) -> bool:
    """Return whether new weights arrived in the middle of an answer."""
    return any(len(set(answer)) > 1 for answer in answers([trace]))


@pytest.mark.gate
def test_lora_is_learned_through_vllm_and_a_killed_server_comes_back(
    make_trainer: Callable[..., RLTrainer], vllm_python: str
) -> None:
    trainer = make_trainer(
        inference=inference(vllm_python), max_steps=8, batch_size=32, learning_rate=1e-3, **FILTERS
    )
    lines = [trainer.step() for _ in range(5)]
    assert_trained_as_sampled(trainer, lines)
    assert max(line["logprob_gap"] for line in lines) < 1e-4
    assert max(abs(line["kl_sample_train_v1"]) for line in lines) < 1e-3
    assert lines[-1]["reward/mean"] > lines[0]["reward/mean"] + 0.1
    assert {v for answer in answers(trainer.folder.step_traces(5)) for v in answer} == {4}

    victims = server_processes()
    assert victims, "no server process was found"
    collected: list[vf.Trace] = []

    def kill_mid_step() -> None:
        while not collected:  # the first finished rollout of the step
            with suppress(vf.ConfigError):  # there is no file before it
                collected.extend(trainer.folder.step_traces(6))
            time.sleep(0.005)
        os.kill(victims[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_mid_step)
    killer.start()
    line = trainer.step()
    killer.join()
    assert collected, "the server was not killed"
    assert line["rollouts/scored"] == 32
    assert line["rollouts/failed"] == 0
    kept = list(trainer.folder.step_traces(6))
    assert len(kept) == 32
    assert {t.id for t in collected} <= {t.id for t in kept}
    assert line["logprob_gap"] < 1e-4, "the server that came back has other weights"
    again = trainer.step()
    assert again["rollouts/scored"] == 32
    trainer.close()
    _, alive = psutil.wait_procs(victims, timeout=60)
    assert not alive


@pytest.mark.gate
def test_all_weights_are_learned_through_vllm_and_published_in_flight(
    make_trainer: Callable[..., RLTrainer], vllm_python: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(resolve_model("tiny"), tmp_path / "model")
    own_way = {"top_k": 2, "top_p": 0.5, "repetition_penalty": 1.3}  # which vLLM would go
    (folder / "generation_config.json").write_text(json.dumps({**own_way, "eos_token_id": 2}))
    trainer = make_trainer(
        model=str(folder),
        inference=inference(vllm_python),
        use_lora=False,
        learning_rate=3e-4,
        max_steps=6,
        batch_size=32,
    )
    lines = [trainer.step() for _ in range(4)]
    assert max(line["logprob_gap"] for line in lines) < 1e-4
    assert lines[-1]["reward/mean"] > lines[0]["reward/mean"]
    check_as_teacher(trainer)
    check_supports(trainer)

    # Sooner or later new weights arrive in the middle of an answer.
    environment = vf.make("test-long-answers")
    task = next(iter(environment.tasks("train")))
    sampling = Sampling(max_tokens=120, temperature=2.0, seed=1)
    running = threading.Event()
    traces: list[vf.Trace] = []
    deadline = time.monotonic() + 120.0

    runner = trainer.collector.orchestrator.runner
    assert isinstance(runner, InProcess)
    [(_, model)] = runner.environments.values()

    async def roll() -> None:
        running.set()
        while not (traces and straddles(traces[-1])) and time.monotonic() < deadline:
            seed = len(traces)
            traces.append(await vf.rollout(environment, task, model, sampling=sampling, seed=seed))

    worker = threading.Thread(target=lambda: trainer.collector.call(roll()), daemon=True)
    worker.start()
    running.wait()
    while worker.is_alive():
        trainer.step_count += 1
        trainer.engine.publish(trainer.step_count)
        time.sleep(0.02)
    worker.join()
    assert all(trace.error is None for trace in traces), [trace.error for trace in traces]
    assert all(answer == sorted(answer) for answer in answers(traces)), "versions only go up"
    assert straddles(traces[-1]), "no answer straddled a publish"


def test_a_kept_cache_serves_conversations_that_continue_and_no_new_ones(vllm_python: str) -> None:
    """The probe after each publish has the same prompt, and would find stale contexts out."""
    settings = inference(vllm_python, keep_cache=True)
    lengths = {"max_seq_len": 1024, "max_prompt_len": 768}
    sampling = Sampling(1, temperature=2.0, seed=0)
    with vf.Learner("tiny", inference=settings, use_lora=False, **lengths) as learner:
        prompt = random.Random(0).choices(range(20, 500), k=512)

        def ask(conversation: str) -> tuple[float, list[float]]:
            """Return the tokens that were found in the cache, and the first token's logprob."""

            async def run() -> Completion:
                sampler = learner.engine.sampler(60.0)
                try:
                    return await sampler.complete(prompt, sampling, [], conversation)
                finally:
                    await sampler.close()

            before = hits(learner.engine.base_url)
            completion = asyncio.run(run())
            return hits(learner.engine.base_url) - before, completion.logprobs

        assert ask("first")[0] == 0
        _, old = ask("first")
        for parameter in learner.policy.weights.module.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        assert learner.publish() < 1e-4
        found, stale = ask("first")
        assert found >= 256
        missed, fresh = ask("second")
        assert missed == 0
        assert stale != pytest.approx(fresh, abs=1e-3)
        assert fresh != pytest.approx(old, abs=1e-3)


def hits(base_url: str) -> float:
    """Return how many tokens of prompts a server has found in its cache."""
    text = httpx.get(f"{base_url.removesuffix('/v1')}/metrics", trust_env=False).text
    lines = re.findall(r"^vllm:prefix_cache_hits_total\S* (\S+)$", text, re.MULTILINE)
    return sum(map(float, lines))


def test_the_newest_adapter_does_not_wait_for_those_that_requests_began_with(
    make_trainer: Callable[..., RLTrainer], vllm_python: str
) -> None:
    trainer = make_trainer(
        inference=inference(vllm_python), max_steps_off_policy=2, max_seq_len=1024
    )
    engine, prompt = trainer.engine, trainer.plan.probe_ids

    async def run() -> None:
        client = JsonClient(engine.base_url, timeout=300.0)
        begun = asyncio.Event()

        async def ask(count: int) -> str:
            lease = await engine.leases.take("")
            begun.set()
            body = {"model": lease.served.model, "prompt": prompt, "max_tokens": count}
            await client.post("/completions", body | {"ignore_eos": True})
            await engine.leases.give_back(lease)
            return lease.served.model

        async def overtakes(first: int) -> bool:
            """Return whether the newest adapter answers while two older ones still do."""
            old: list[asyncio.Task[str]] = []
            for version in (first, first + 1):
                begun.clear()
                old.append(asyncio.create_task(ask(800)))
                await begun.wait()
                await asyncio.to_thread(engine.publish, version)
            newest = await ask(2)
            running = not any(task.done() for task in old)
            assert len({newest, *[await task for task in old]}) == 3
            return running

        try:
            for first in range(1, 16, 2):  # on a busy machine old answers may end meanwhile
                if await overtakes(first):
                    return
            pytest.fail("it waited for older adapters")
        finally:
            await client.close()

    asyncio.run(run())
