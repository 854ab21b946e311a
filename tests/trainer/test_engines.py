"""The trainer and its engine: what is built from the config, and the check of its weights.

The server is a stand-in that samples token 0 with a logprob of -0.5, whatever the weights.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.inference.one_server import leased
from tests.inference.vllm.conftest import variables
from tests.inference.vllm.stand_in_engine import EXECUTABLE, Journal
from tests.waiting import alive, wait_until
from vf.inference.completions import Completion
from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.engine import Engine
from vf.inference.model_files import resolve_model
from vf.inference.reference_sample import ReferenceSample
from vf.runtime.errors import ConfigError, ModelError, ServerDown, TrainingError
from vf.trainer.engines import PROBE_TOKENS, check_gap, probe
from vf.trainer.learning.sharding.ranks import Ranks
from vf.trainer.learning.sharding.weights import Weights
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.run.setup import ProbePrompt

MakeTrainer = Callable[..., RLTrainer]
BLIND = {"fail": {"/tokenize": "no tokenizer"}}  # so that the stand-in's is not compared


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """What the stand-in writes down."""
    return Journal(tmp_path / "journal.jsonl")


def inference(journal: Journal, how: dict[str, Any], **settings: Any) -> dict[str, Any]:
    env = variables(journal, how)
    return {"engine": "vllm", "executable": EXECUTABLE, "env": env, **settings}


def test_a_server_that_samples_from_other_weights_is_found_out_at_once(
    make_trainer: MakeTrainer, journal: Journal
) -> None:
    with pytest.raises(TrainingError, match=r"after publishing version 0, .* over inference\.log"):
        make_trainer(inference=inference(journal, BLIND), max_steps_off_policy=3)
    assert journal.flag("--max-loras") == "4", "the newest, and those that requests began with"
    [(_, body)] = journal.calls("/v1/completions")
    assert body["max_tokens"] == PROBE_TOKENS
    assert body["model"] != "tiny", "the adapter is asked, not the base model"
    assert journal.flag("--max-lora-rank") == "16"
    assert not any(map(alive, journal.pids)), "the server is gone with the trainer"


def test_another_tokenizer_is_found_out_at_once(
    make_trainer: MakeTrainer, journal: Journal
) -> None:
    with pytest.raises(ConfigError, match="tokenizer differs"):
        make_trainer(inference=inference(journal, {}))
    [(_, body)] = journal.calls("/tokenize")
    assert "Say " in body["prompt"], "the run's own prompts are compared"
    assert not any(map(alive, journal.pids))


def test_a_full_fine_tune_is_published_by_disk(make_trainer: MakeTrainer, journal: Journal) -> None:
    with pytest.raises(TrainingError, match="after publishing version 0"):
        make_trainer(inference=inference(journal, BLIND), use_lora=False)
    assert journal.calls("/collective_rpc")
    assert not journal.calls("/v1/load_lora_adapter")


@pytest.mark.slow
def test_a_step_survives_a_crash_of_its_server(make_trainer: MakeTrainer, journal: Journal) -> None:
    how = BLIND | {"token_seconds": 0.03}
    settings = inference(journal, how, logprob_tolerance=1e9)
    trainer = make_trainer(inference=settings, max_error_rate=0.0, max_concurrent=4)
    probed = journal.begun

    def kill() -> None:
        wait_until(lambda: journal.begun > probed + 6)
        os.kill(journal.pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    metrics = trainer.step()
    killer.join()
    traces = list(trainer.folder.step_traces(1))
    assert len(traces) == 16
    assert all(trace.error is None for trace in traces)
    assert (metrics["rollouts/scored"], metrics["rollouts/failed"]) == (16, 0)
    assert len(journal.starts) == 2
    assert trainer.engine.served.version == 1
    assert "is started again" in trainer.folder.trainer_log.read_text()
    assert trainer.folder.inference_log.read_text().count("Loading") == 2, "both lives are logged"


@pytest.mark.slow
def test_a_step_does_not_notice_that_one_of_its_servers_died(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    every = Journal(tmp_path / "journal-{port}.jsonl")
    how = BLIND | {"token_seconds": 0.03}
    settings = inference(every, how, replicas=2, logprob_tolerance=1e9)
    trainer = make_trainer(inference=settings, max_error_rate=0.0, max_concurrent=8)
    one, two = (Journal(path) for path in sorted(tmp_path.glob("journal-*.jsonl")))
    probes, same = one.begun, two.begun
    assert probes == same > 0, "both are probed"

    def kill() -> None:
        wait_until(lambda: one.begun > probes + 5 and two.begun > probes)
        os.kill(two.pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    metrics = trainer.step()
    killer.join()
    traces = list(trainer.folder.step_traces(1))
    assert (len(traces), metrics["rollouts/failed"]) == (16, 0)
    assert "is retried" not in trainer.folder.trainer_log.read_text(), "only requests were moved"
    assert trainer.engine.served.version == 1

    def is_back() -> bool:
        trainer.engine.check()
        return len(trainer.engine.samplers(1.0)) == 2

    wait_until(is_back)
    assert len(two.starts) == 2


ALONE = Completion([7, 8], [-1.0, -2.0], [0, 0], "length")


class Flaky:
    """An engine whose servers give these answers, after going down a few times."""

    def __init__(self, inner: Engine, *answers: Completion | ModelError, outages: int = 0) -> None:
        assert isinstance(inner, EmbeddedServer)
        self.serving, self.leases, self.training = inner.serving, inner.leases, inner.training
        self.answers = answers
        self.outages = outages
        self.asked: list[Any] = []
        self.references: list[ReferenceSample] = []
        self.left_out: list[str] = []

    def samplers(self, timeout: float) -> dict[str, Any]:
        return {str(n): FlakySampler(self, answer) for n, answer in enumerate(self.answers)}

    def leave_out(self, base_url: str, error: ModelError) -> None:
        if len(self.left_out) == len(self.answers) - 1:
            raise error
        self.left_out.append(base_url)

    def remember(self, reference: ReferenceSample) -> None:
        self.references.append(reference)

    def gap(self, trainer: RLTrainer) -> float:
        args = trainer.policy, 3, ProbePrompt([1, 2, 3]), [0]
        work = probe(self, *args, timeout=60.0, tolerance=0.05)  # type: ignore[arg-type]
        return asyncio.run(asyncio.wait_for(work, 60.0)).gap


@dataclass
class FlakySampler:
    """One of its servers."""

    engine: Flaky
    answer: Completion | ModelError

    async def complete(self, prompt_ids: list[int], sampling: Any, stops: list[int]) -> Completion:
        engine = self.engine
        engine.asked.append((prompt_ids, sampling.seed, sampling.temperature, stops))
        with leased(engine.serving):
            if engine.outages:
                engine.outages -= 1
                engine.serving.down()
                threading.Timer(0.1, engine.serving.up).start()
                raise ServerDown("gone")
        if isinstance(self.answer, ModelError):
            raise self.answer
        return self.answer

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("outages", [0, 2])
def test_the_gap_is_the_mean_distance_of_the_logprobs(
    make_trainer: MakeTrainer, outages: int
) -> None:
    trainer = make_trainer(temperature=0.5)
    engine = Flaky(trainer.engine, ALONE, outages=outages)
    gap = engine.gap(trainer)
    ids = torch.tensor([[1, 2, 3, 7, 8]])
    with torch.no_grad(), trainer.engine.training():
        logits = trainer.policy.weights.module(ids, use_cache=False).logits[0].float() / 0.5
    mine = torch.log_softmax(logits, -1)
    wanted = (abs(-1.0 - mine[2, 7]) + abs(-2.0 - mine[3, 8])) / 2
    assert gap == pytest.approx(float(wanted), abs=1e-4)
    assert engine.asked == [([1, 2, 3], 0, 0.5, [0])] * (1 + outages)
    reference = engine.references[-1]
    assert (reference.version, reference.prompt_ids) == (3, [1, 2, 3])
    assert [*reference.token_ids] == [7, 8]
    assert reference.logprobs == pytest.approx([float(mine[2, 7]), float(mine[3, 8])], abs=1e-4)


def test_of_several_servers_the_one_that_is_farthest_off_counts(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    gap = Flaky(trainer.engine, ALONE).gap(trainer)
    off = replace(ALONE, logprobs=[-1001.0, -2.0])
    assert Flaky(trainer.engine, ALONE, off).gap(trainer) > gap + 400.0
    silent = replace(ALONE, logprobs=[math.nan, -2.0])
    assert math.isnan(Flaky(trainer.engine, ALONE, silent, ALONE).gap(trainer)), "check_gap stops"


def test_a_server_that_fails_the_probe_is_left_out_if_another_answers(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer()
    gap = Flaky(trainer.engine, ALONE).gap(trainer)
    engine = Flaky(trainer.engine, ModelError("500"), ALONE)
    assert engine.gap(trainer) == gap
    assert engine.left_out == ["0"]
    with pytest.raises(ModelError, match="503"):
        Flaky(trainer.engine, ModelError("500"), ModelError("503")).gap(trainer)


def test_a_gap_over_the_tolerance_or_no_number_stops_the_run() -> None:
    check_gap(0.05, 0.05, 3)
    for gap in (0.0501, float("inf"), float("nan")):
        with pytest.raises(TrainingError, match=r"version 3, .*_tolerance = 0\.05"):
            check_gap(gap, 0.05, 3)


def test_an_untied_copy_says_the_same(tmp_path: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"), dtype=torch.float32)
    with torch.no_grad():
        next(module.parameters()).mul_(1.5)  # as training would
    weights = Weights(module, Ranks(), adapter=False)
    weights.save(tmp_path / "copy", untied=True)
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "copy", dtype=torch.float32)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        assert torch.equal(again(ids).logits, module(ids).logits)


def test_tensors_are_named_as_in_the_models_own_files() -> None:
    module = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"))
    named = dict(Weights(module, Ranks(), adapter=False).named_tensors())
    state = module.state_dict()
    assert set(named) <= set(state)
    assert set(state) - set(named) <= {"lm_head.weight"}, "tied to the embedding"
    assert not any(tensor.requires_grad for tensor in named.values())
