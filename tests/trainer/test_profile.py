"""A step under the profiler: the trace, and a table whose numbers can be checked by hand."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

import vf
from tests.trainer.conftest import TrainerFactory, VfRl
from vf.runtime.errors import TrainingError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import MicroBatch, Sample, micro_batches
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.passes import unwatched
from vf.trainer.learning.policy import Policy
from vf.trainer.profile import ModelCost, Row, StepProfile, Work, matmul_rate, profile_step
from vf.trainer.settings.config import TrainerArgs

STEM = 100


class Equal(vf.Environment):
    """Every reply is worth as much, so there is nothing to learn."""

    max_turns = 1
    rubric = vf.Rubric(outcome=lambda trace: 1.0)

    def tasks(self, split: str) -> list[vf.Task]:
        return [vf.Task(f"{split}-{index}", "Say it.") for index in range(4)]


vf.register("test-equal", Equal)


def samples() -> list[Sample]:
    """Return four that share a stem and part at the token behind it."""
    rng = random.Random(0)
    stem = [rng.randrange(512) for _ in range(STEM)]
    out = []
    for index in range(4):
        own = [index, *(rng.randrange(512) for _ in range(20 + 7 * index))]
        branch = Branch()
        branch.add_context(stem, 0)
        branch.add_sampled(own, [-6.0] * len(own), [0] * len(own), 0)
        out.append(Sample(branch, rng.uniform(-1, 1)))
    return out


def prefixes(parts: Sequence[Sample]) -> set[tuple[int, ...]]:
    """Return every distinct beginning: each is one token, which sees as many as it is long."""
    sequences = [tuple(sample.branch.token_ids) for sample in parts]
    return {ids[:end] for ids in sequences for end in range(1, len(ids) + 1)}


def test_work_of_packed_samples_is_that_of_their_distinct_beginnings() -> None:
    [batch] = pack(samples(), 1000)
    distinct = prefixes(samples())
    work = Work.of(batch)
    assert work.tokens == len(distinct)
    assert work.pairs == sum(map(len, distinct))
    sampled = sum(len(sample) - STEM for sample in samples())
    assert work.predictions == sampled - 3  # the stem's end predicts all four first tokens


def test_work_of_padded_rows_counts_the_padding() -> None:
    [batch] = micro_batches(samples(), 1000)
    longest = STEM + 1 + 20 + 7 * 3
    sampled = sum(len(sample) - STEM for sample in samples())
    assert Work.of(batch) == Work(4 * longest, sampled, 4 * longest * (longest + 1) // 2)


@pytest.mark.parametrize("packed", [True, False])
def test_flops_are_those_that_torch_counts(packed: bool) -> None:
    args = TrainerArgs(use_lora=False, packing=packed, max_seq_len=384, max_prompt_len=192)
    policy = Policy("tiny", args)
    [batch] = pack(samples(), 1000) if packed else micro_batches(samples(), 1000)
    # Of the fused attention on CPUs torch knows no count.
    cost, work = replace(ModelCost.of(policy.weights.module), attention=0), Work.of(batch)
    with policy.forward.active():
        with FlopCounterMode(display=False) as forward:
            logprobs = policy.forward(batch, 1.0).logprobs
        with FlopCounterMode(display=False) as backward:
            torch.autograd.backward(logprobs.sum())
    # It misses the addmm_ of the head's gradient, and sees the head's logits a second time.
    assert forward.get_total_flops() == cost.forward(work)
    assert backward.get_total_flops() == cost.backward(work)


def test_a_lora_backward_pass_has_no_gradients_of_frozen_weights() -> None:
    policy = Policy("tiny", TrainerArgs(lora_rank=8))
    cost = ModelCost.of(policy.weights.module)
    adapters = sum(p.numel() for n, p in policy.model.named_parameters() if "lora_" in n)
    plain = ModelCost.of(Policy("tiny", TrainerArgs(use_lora=False)).weights.module)
    assert (cost.trained, cost.head_trained) == (adapters, 0)
    assert cost.weights == plain.weights + adapters
    work = Work(tokens=10, predictions=3, pairs=55)
    assert cost.forward(work, adapter=False) == plain.forward(work)
    attention = 4 * cost.attention * 55
    expected = cost.forward(work) + attention + 2 * adapters * 10
    assert cost.backward(work) == expected


def test_six_flops_for_each_weight_and_token() -> None:
    cost = ModelCost(weights=1000, trained=1000, head=0, head_trained=0, attention=0)
    work = Work(tokens=7, predictions=0, pairs=0)
    assert cost.forward(work) + cost.backward(work) == 6 * 1000 * 7


@pytest.mark.slow
def test_a_profiled_run_has_a_trace_and_numbers_that_fit(make_trainer: TrainerFactory) -> None:
    seen: list[MicroBatch] = []
    trainer = make_trainer(max_steps=6)
    forward = trainer.policy.forward

    def watched(batch: MicroBatch, *args: float, **kwargs: bool) -> object:
        if batch.tree is not None:  # the probe of the engine's weights has none
            seen.append(batch)
        return forward(batch, *args, **kwargs)

    watched.active, watched.how = forward.active, forward.how  # type: ignore[attr-defined]
    watched.compared = forward.compared  # type: ignore[attr-defined]
    trainer.policy.forward = watched  # type: ignore[assignment]
    found = profile_step(trainer)
    assert trainer.policy.passes.phase is unwatched
    rows = {row.name: row for row in found.rows}
    metrics = trainer.folder.read_metrics()
    assert found.metrics == metrics[-1]
    assert found.step == metrics[-1]["step"] == trainer.step_count
    computed = metrics[-1]["tokens/computed"]
    assert rows["forward"].tokens == rows["backward"].tokens == computed > 0
    assert rows["generate"].tokens == metrics[-1]["tokens/sampled"]
    last: list[MicroBatch] = []
    while sum(batch.computed for batch in last) < computed:
        last.insert(0, seen.pop())
    cost = ModelCost.of(trainer.policy.weights.module)
    assert rows["forward"].flops == sum(cost.forward(Work.of(batch)) for batch in last)
    assert rows["backward"].flops == sum(cost.backward(Work.of(batch)) for batch in last)
    total = sum(row.seconds for row in found.rows)
    assert total <= metrics[-1]["time/total"] * 1.001  # less by what the profiler itself took
    for name in ("forward", "backward", "optimizer", "publish"):
        assert rows[name].seconds > 0

    assert found.trace == trainer.folder.profiles / f"step-{found.step}.json.gz"
    with gzip.open(found.trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    spans = {event["name"]: event for event in events if event.get("ph") == "X"}
    for name in ("forward", "backward", "optimizer", "publish"):
        assert spans[f"vf-rl: {name}"]["dur"] > 0
    inside = spans["vf-rl: backward"]
    begin, end = inside["ts"], inside["ts"] + inside["dur"]
    names = {e["name"] for e in events if e.get("ph") == "X" and begin <= e["ts"] <= end}
    assert "aten::mm" in names
    assert any("Backward" in name for name in names)


@pytest.mark.slow
def test_steps_without_a_lesson_are_distinguished_from_a_profile(
    make_trainer: TrainerFactory,
) -> None:
    trainer = make_trainer(env="test-equal", max_steps=2)
    with pytest.raises(TrainingError, match="without two steps to learn from"):
        profile_step(trainer)
    assert len(trainer.folder.read_metrics()) == 2


@pytest.mark.slow
def test_the_command_prints_a_table_and_ends(config: Path, tmp_path: Path, vf_rl: VfRl) -> None:
    small = ["--set", "max_steps=6", "--set", "env.id=test-digits", "--set", "run_name=profiled"]
    code, said, _ = vf_rl(config, "--profile", *small)
    assert code == 0
    for word in ("generate", "forward", "backward", "optimizer", "publish", "matmul rate"):
        assert word in said
    [trace] = (tmp_path / "runs/profiled/profile").iterdir()
    assert str(trace) in said
    assert not list((tmp_path / "runs/profiled/checkpoints").iterdir())


def test_one_step_cannot_be_profiled(config: Path, vf_rl: VfRl) -> None:
    code, _, err = vf_rl(config, "--profile", "--set", "max_steps=1")
    assert code == 2
    assert "max_steps = 1, but --profile trains two steps" in err


def test_the_table_divides_as_it_should() -> None:
    rows = [
        Row("generate", 3.0, 5),
        Row("forward", 2.0, 10, 10**9),
        Row("backward", 1.0, 10, 10**9),
    ]
    found = StepProfile(2, rows, 1e9, "by hand", Path("trace"), {})
    console = Console(width=100, record=True, file=StringIO())
    console.print(found.table())
    lines = [line.replace("│", " ").split() for line in console.export_text().splitlines()]
    assert ["forward", "2.000", "10", "1.00", "G", "500.00", "M", "50.0%"] in lines
    assert ["backward", "1.000", "10", "1.00", "G", "1.00", "G", "100.0%"] in lines
    assert ["model", "passes", "3.000", "2.00", "G", "666.67", "M", "66.7%"] in lines
    assert ["step", "6.000"] in lines


@pytest.mark.slow
def test_the_matmul_rate_is_that_of_a_product_that_takes_a_while() -> None:
    rate, how = matmul_rate(torch.device("cpu"), torch.float32)
    size = int(how.split()[0])
    assert "float32, cpu" in how
    assert 2 * size**3 / rate >= 0.05 or size == 8192
