"""A teacher that reads more than the student: of the same tokens, behind another prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import vf
from tests.trainer.learning.batches.test_top_tokens import prompt_logprobs
from tests.trainer.learning.losses.test_losses_update import policy
from vf.environments.bundled.calculator import Calculator
from vf.inference.model_files import load_module, resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError, TrainingError
from vf.testing import FakeServer
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Branch, Lineage, Score, Trace
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.privileged_prompts import (
    Privileged,
    attach_told,
    check_privileged,
    with_text,
)
from vf.trainer.learning.teacher import TeacherServer
from vf.trainer.preflight import preflight
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.load_config import parse_config

HINT = "The answer is 7."
LIMITS: dict[str, Any] = {"max_seq_len": 512, "max_prompt_len": 256}
TAUGHT: dict[str, Any] = {**LIMITS, "teacher_model": "tiny", "teacher_privileged": True}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.from_pretrained(resolve_model("tiny"))


def rollout(renderer: Renderer, *answers: str, task: str = "3 + 4") -> Trace:
    """Return a rollout of the calculator with these answers, and "Continue." between them."""
    env = Calculator()
    trace = Trace("calculator", Task(task, f"Compute {task}.", 7), seed=0)
    trace.messages = env.first_messages(trace.task)
    trace.prompt_messages = len(trace.messages)
    trace.tools = env.toolbox.schemas()
    trace.score = Score(1.0, 1.0)
    branch = Branch()
    branch.add_context(renderer.prompt(trace.messages, trace.tools), 0)
    for turn, answer in enumerate(answers):
        if turn:
            new = [Message("user", "Continue.")]
            reply = trace.messages[-1]
            last = branch.token_ids[-1]
            branch.add_context(renderer.bridge(reply, new, trace.tools, last), turn)
            trace.messages += new
        ids = [*renderer.template.encode(answer), renderer.closer_id]
        branch.add_sampled(ids, [-1.0] * len(ids), [0] * len(ids), turn)
        trace.messages.append(Message("assistant", answer))
    trace.branches = [branch]
    return trace


def samples_of(traces: Sequence[Trace]) -> list[Sample]:
    return [Sample(branch, 0.0) for trace in traces for branch in trace.branches]


def test_sampled_tokens_and_all_behind_the_first_prompt_stay(renderer: Renderer) -> None:
    trace = rollout(renderer, "I think 7.", "Answer: 7")
    [sample] = samples_of([trace])
    sample.branch.supports = [[token, 511] for token in sample.branch.token_ids]
    found = Privileged(renderer, TrainerArgs(**LIMITS))
    [seen] = found.samples([sample], [trace], lambda task: HINT)
    prompt = renderer.prompt(with_text(trace.messages[: trace.prompt_messages], HINT), trace.tools)
    count = sample.branch.loss_mask.index(1)
    assert seen.branch.token_ids == [*prompt, *sample.branch.token_ids[count:]]
    assert seen.branch.loss_mask == [0] * len(prompt) + sample.branch.loss_mask[count:]
    assert seen.branch.logprobs[len(prompt) :] == sample.branch.logprobs[count:]
    assert seen.branch.supports[len(prompt) :] == sample.branch.supports[count:]
    text = renderer.decode(seen.branch.token_ids)
    assert f"{HINT}\n\nCompute 3 + 4." in text
    [same] = found.samples([sample], [trace], lambda task: None)
    assert same.branch is sample.branch


@pytest.mark.parametrize("loss", ["reverse_kl", "forward_kl"])
def test_logprobs_are_those_behind_the_privileged_prompt(renderer: Renderer, loss: Any) -> None:
    """And get back to the student's tokens, here of two rollouts of one task."""
    made = policy(**TAUGHT, teacher_loss=loss, temperature=0.8)
    traces = [rollout(renderer, "I think 7.", "Answer: 7"), rollout(renderer, "Answer: 8")]
    batch = samples_of(traces)
    seen = Privileged(renderer, made.args).samples(batch, traces, lambda task: HINT)
    taught = attach_told(batch, made.with_teacher_logprobs(seen))
    model = load_module("tiny", torch.float32, "model").double()
    for trace, sample in zip(traces, taught, strict=True):
        prompt = renderer.prompt(
            with_text(trace.messages[: trace.prompt_messages], HINT), trace.tools
        )
        branch = sample.branch
        count = branch.loss_mask.index(1)
        ids = [*prompt, *branch.token_ids[count:]]
        with torch.no_grad():
            every = (model(torch.tensor([ids])).logits[0] / 0.8).log_softmax(-1)
        shift, places = len(prompt) - count, [t for t, m in enumerate(branch.loss_mask) if m]
        expected = [float(every[t + shift - 1, branch.token_ids[t]]) for t in places]
        assert [sample.teacher_logprobs[t] for t in places] == pytest.approx(expected, abs=1e-4)
        assert len(sample.teacher_logprobs) == len(branch)
        if loss == "forward_kl":
            assert sample.likeliest is not None
            best = every[[t + shift - 1 for t in places]].topk(20)
            torch.testing.assert_close(
                sample.likeliest.logprobs.double(), best.values, atol=1e-4, rtol=0
            )
    plain = made.with_teacher_logprobs(batch)
    assert any(a.teacher_logprobs != b.teacher_logprobs for a, b in zip(plain, taught, strict=True))
    stats = made.update(taught)
    assert stats.kl_teacher_v1 != 0.0
    assert (stats.kl_teacher_forward > 0.0) == (loss == "forward_kl")


def test_a_model_learns_to_answer_as_if_it_had_read_the_text(renderer: Renderer) -> None:
    made = policy(**TAUGHT, teacher_loss="forward_kl", use_lora=False, learning_rate=3e-4)
    traces = [rollout(renderer, "I think 7.", "Answer: 7"), rollout(renderer, "Answer: 8")]
    batch = samples_of(traces)
    seen = Privileged(renderer, made.args).samples(batch, traces, lambda task: HINT)
    taught = attach_told(batch, made.with_teacher_logprobs(seen))
    distances = [made.update(taught).kl_teacher_forward for _ in range(8)]
    assert distances[-1] < 0.3 * distances[0]


def test_a_server_reads_the_privileged_prompt(renderer: Renderer) -> None:
    model = load_module("tiny", torch.float32, "model")
    traces = [rollout(renderer, "Answer: 7")]
    made = policy(**TAUGHT)
    batch = samples_of(traces)
    seen = Privileged(renderer, made.args).samples(batch, traces, lambda task: HINT)
    bodies = []

    async def ask() -> list[Sample]:
        async with FakeServer(lambda request: prompt_logprobs(model, request.body)) as server:
            args = TrainerArgs(**TAUGHT, teacher_base_url=server.base_url)
            client = TeacherServer(args)
            try:
                return await client.ask(seen)
            finally:
                bodies.extend(server.bodies)
                await client.close()

    [ours] = attach_told(batch, made.with_teacher_logprobs(seen))
    [theirs] = attach_told(batch, asyncio.run(ask()))
    assert bodies[0]["prompt"] == seen[0].branch.token_ids
    assert ours.teacher_logprobs == pytest.approx(theirs.teacher_logprobs, abs=1e-4)


def test_a_teacher_has_room_for_the_text_behind_a_full_context(renderer: Renderer) -> None:
    trace = rollout(renderer, "Answer: 7")
    [sample] = samples_of([trace])
    size = len(sample)
    made = policy(**{**TAUGHT, "max_seq_len": size, "max_prompt_len": size - 1})
    seen = Privileged(renderer, made.args).samples([sample], [trace], lambda task: HINT)
    assert len(seen[0]) > size
    [taught] = attach_told([sample], made.with_teacher_logprobs(seen))
    assert sum(value != 0.0 for value in taught.teacher_logprobs) == sum(sample.branch.loss_mask)


def test_every_conversation_of_a_rollout_gets_the_text(renderer: Renderer) -> None:
    """Here a second one that began in the middle, with its own first messages."""
    trace = rollout(renderer, "Answer: 7")
    other = rollout(renderer, "Answer: 12", task="5 + 7")
    first, second = (
        Lineage(each.messages, each.prompt_messages, each.tools, [place], [place], [2])
        for place, each in enumerate((trace, other))
    )
    trace.lineages = [first, second]
    trace.branches += other.branches
    batch = samples_of([trace])
    seen = Privileged(renderer, TrainerArgs(**LIMITS)).samples(batch, [trace], lambda task: HINT)
    texts = [renderer.decode(each.branch.token_ids) for each in seen]
    assert f"{HINT}\n\nCompute 3 + 4." in texts[0]
    assert f"{HINT}\n\nCompute 5 + 7." in texts[1]


def test_a_prompt_that_the_template_renders_otherwise_is_refused(renderer: Renderer) -> None:
    trace = rollout(renderer, "Answer: 7")
    trace.branches[0].token_ids[0] += 1
    found = Privileged(renderer, TrainerArgs(**LIMITS))
    with pytest.raises(TrainingError, match=r"trainer.args.teacher_privileged.*'3 \+ 4' does not"):
        found.samples(samples_of([trace]), [trace], lambda task: HINT)


def raising(task: Task) -> str:
    raise KeyError("solution")


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (raising, r"privileged_context of task '3 \+ 4' raised KeyError: 'solution'"),
        (lambda task: 7, "must return text or None, and returned 7"),
        (lambda task: HINT * 300, r"has \d+ tokens, over trainer.args.max_prompt_len = 256"),
    ],
)
def test_a_context_that_cannot_be_read_ends_the_run(
    renderer: Renderer, context: Any, message: str
) -> None:
    trace = rollout(renderer, "Answer: 7")
    found = Privileged(renderer, TrainerArgs(**LIMITS))
    with pytest.raises(TrainingError, match=message):
        found.samples(samples_of([trace]), [trace], context)


@pytest.mark.slow
@pytest.mark.parametrize("privileged", [False, True])
def test_a_run_learns_from_itself_with_the_solution(make_trainer: Any, privileged: bool) -> None:
    """Without it, the model and its start do not differ in the first step."""
    trainer: RLTrainer = make_trainer(
        env="calculator",
        teacher_model="tiny",
        teacher_privileged=privileged,
        teacher_loss="forward_kl",
        max_tokens=32,
    )
    line = trainer.step()
    assert line["tokens/trained"]
    if privileged:
        assert line["kl_teacher_forward"] > 0.01
    else:
        assert line["kl_teacher_forward"] == pytest.approx(0.0, abs=1e-5)
        assert line["kl_teacher_v1"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.gate
def test_the_room_for_the_text_is_that_of_the_run(make_trainer: Any) -> None:
    """And not that of an environment with longer prompts: the teacher was loaded with the run's."""
    trainer: RLTrainer = make_trainer(
        env={"id": "calculator", "max_prompt_len": 256},
        teacher_model="tiny",
        teacher_privileged=True,
        max_prompt_len=16,
        max_tokens=32,
    )
    with pytest.raises(TrainingError, match=r"over trainer.args.max_prompt_len = 16"):
        trainer.step()


class Silent(vf.Environment):
    """Has nothing to tell."""

    def tasks(self, split: Any) -> list[Task]:
        return [Task("a", "?")]


def test_an_environment_with_nothing_to_tell_is_refused_at_the_start(renderer: Renderer) -> None:
    with pytest.raises(ConfigError, match=r"define privileged_context\(self, task\)"):
        check_privileged(Silent(), Task("a", "?"), renderer)
    raw: dict[str, Any] = {
        "model": "tiny",
        "env": {"id": "guess-number"},
        "trainer": {"args": {**TAUGHT, "max_tokens": 64}},
    }
    with pytest.raises(ConfigError, match="'guess-number' has nothing to tell a teacher"):
        preflight(parse_config(raw)[0])


def test_the_calculator_tells_calls_that_work_a_task_out() -> None:
    env = Calculator()
    task = next(iter(env.tasks("train")))
    assert str(task.answer) in env.privileged_context(task)
