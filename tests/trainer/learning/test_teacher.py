"""A teacher's part of the gradient against a loop over tokens; what a teacher must share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.learning.losses.test_losses_update import (
    assert_equal,
    gradients,
    naive_gradients,
    naive_terms,
    policy,
)
from tests.trainer.learning.test_policy import samples
from vf.inference.model_files import resolve_model
from vf.runtime.errors import ConfigError, TrainingError
from vf.testing import FakeServer, Response
from vf.traces.task import Task
from vf.traces.trace import Branch, Score, Trace
from vf.trainer.learning.batches.batch import build_samples
from vf.trainer.learning.model.frozen_models import check_tokenizer
from vf.trainer.learning.teacher import TeacherServer
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """The folder of a model like the tiny one, with other weights."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * float(parameter.std()) * noise)
    model.save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(resolve_model("tiny")).save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


@pytest.mark.parametrize("packing", [True, False])
def test_the_gradient_is_that_of_a_loop_over_tokens(teacher: Path, packing: bool) -> None:
    """A = a + coef · (log p_teacher − log q), in micro-batches, at a temperature of its own."""
    settings: dict[str, Any] = {
        "teacher_model": str(teacher),
        "teacher_coef": 0.7,
        "temperature": 0.8,
        "micro_batch_tokens": 40,
        "packing": packing,
    }
    made, batch = policy(**settings), samples()
    other = AutoModelForCausalLM.from_pretrained(teacher).double()
    total = sum(sum(sample.branch.loss_mask) for sample in batch)
    loss, distance = torch.zeros(()), 0.0
    for sample in batch:
        ids = torch.tensor([sample.branch.token_ids])
        with torch.no_grad():
            taught = (other(input_ids=ids).logits[0] / 0.8).log_softmax(-1)
        logits = made.model(input_ids=ids).logits[0] / 0.8
        for _, _, t in naive_terms(made, sample):
            token, sampled = sample.branch.token_ids[t], sample.branch.logprobs[t]
            gap = sampled - float(taught[t - 1][token])
            ratio = (logits[t - 1].log_softmax(-1)[token] - sampled).exp()
            loss = loss - ratio * (sample.advantage - 0.7 * gap) / total
            distance += gap / total
    expected = naive_gradients(made, loss)
    known = made.with_teacher_logprobs(batch)
    assert_equal(gradients(made, known), expected)
    assert made.update(known).kl_teacher_v1 == pytest.approx(distance, rel=1e-4)


def test_a_teacher_or_an_entropy_bonus_counts_where_all_rewards_are_equal() -> None:
    def group(*rewards: float) -> Group:
        branch = Branch([1, 2, 3], [0, 1, 1], [0.0, -1.0, -1.0], [0, 0, 0], [-1, 0, 0])
        traces = []
        for reward in rewards:
            trace = Trace("test", Task("a", "?"), seed=0)
            trace.branches, trace.score = [branch], Score(reward=reward, outcome=reward)
            traces.append(trace)
        return Group(Task("a", "?"), traces)

    alone = TrainerArgs(teacher_model="tiny")
    both = TrainerArgs(teacher_model="tiny", teacher_reward_coef=0.5)
    groups = [group(1.0, 1.0), group(0.0, 1.0)]
    assert [[each.advantage for each in batch] for batch in build_samples(groups, alone)] == [
        [0.0, 0.0],
        [0.0, 0.0],
    ]
    assert [[each.advantage for each in batch] for batch in build_samples(groups, both)] == [
        [0.0, 0.0],
        [-0.25, 0.25],
    ]
    assert len(build_samples(groups, TrainerArgs())) == 1
    assert len(build_samples(groups, TrainerArgs(entropy_coef=0.1))) == 2


def test_a_teacher_with_other_tokens_is_refused(teacher: Path) -> None:
    args = TrainerArgs(teacher_model=str(teacher))
    ours = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    check_tokenizer(args, ours)
    theirs = AutoTokenizer.from_pretrained(teacher)
    theirs.add_tokens(["<one-more>"])
    theirs.save_pretrained(teacher)
    with pytest.raises(ConfigError, match="another tokenizer than model: 1 entries"):
        check_tokenizer(args, ours)


def test_a_server_that_does_not_score_prompts_ends_the_run() -> None:
    async def ask(answer: dict[str, Any]) -> None:
        async with FakeServer(Response(answer)) as server:
            args = TrainerArgs(teacher_model="t", teacher_base_url=server.base_url)
            teacher = TeacherServer(args)
            try:
                await teacher.ask(samples(count=2))
            finally:
                await teacher.close()

    with pytest.raises(TrainingError, match="answered without the prompt_logprobs"):
        asyncio.run(ask({"choices": [{"text": ""}]}))


def test_an_address_where_no_server_is_gets_named() -> None:
    args = TrainerArgs(teacher_model="t", teacher_base_url="http://127.0.0.1:9/v1")

    async def check() -> None:
        teacher = TeacherServer(args)
        try:
            teacher.check(None)
        finally:
            await teacher.close()

    with pytest.raises(ConfigError, match="teacher_base_url = 'http://127"):
        asyncio.run(check())


def test_a_sample_that_is_cut_keeps_the_logprobs_of_what_is_left(teacher: Path) -> None:
    made = policy(teacher_model=str(teacher), long_sequences="truncate")
    made.args = made.args.model_copy(update={"max_seq_len": 20})
    batch = samples()
    assert any(len(each) > 20 for each in batch)
    known = made.with_teacher_logprobs(batch)
    gaps = [
        sample.branch.logprobs[t] - sample.teacher_logprobs[t]
        for sample in known
        for t in range(1, min(20, len(sample)))
        if sample.branch.loss_mask[t]
    ]
    found = made.update(known)
    assert found.too_long > 0
    assert found.kl_teacher_v1 == pytest.approx(sum(gaps) / len(gaps), rel=1e-5)
