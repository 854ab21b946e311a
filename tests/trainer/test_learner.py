"""A learner, call by call, on the real tiny model with its embedded engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vf
from tests.trainer.conftest import Digits
from tests.trainer.learning.forked_samples import forked_samples
from vf.runtime.errors import ConfigError, TrainingError
from vf.trainer.commands.export import main as export
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.losses.custom_loss import check_loss
from vf.trainer.learning.losses.policy_gradient import LossArrays
from vf.trainer.settings.config import TrainerArgs

SETTINGS: dict[str, Any] = {
    "max_tokens": 8,
    "max_prompt_len": 192,
    "max_seq_len": 384,
    "micro_batch_size": 3,  # several micro-batches
    "temperature": 0.8,
    "lora_rank": 4,
    "bf16": False,
}
ENV, TASKS = Digits(), list(Digits().tasks("train"))


@pytest.fixture(scope="module")
def learner() -> Iterator[vf.Learner]:
    """A learner that tests leave without a gradient under way."""
    with vf.Learner("tiny", **SETTINGS) as made:
        yield made


def collect(learner: vf.Learner, count: int = 2) -> list[vf.Trace]:
    return asyncio.run(
        vf.rollouts(ENV, learner.sampler(), TASKS[:count], rollouts_per_example=4, seed=3)
    )


def plain(arrays: LossArrays) -> torch.Tensor:
    return -arrays.log_ratio.exp() * arrays.advantages


def norm_of(learner: vf.Learner, *parts: list[Sample], loss_fn: Any = None) -> float:
    """Return the gradient's norm; at a rate of 0 the weights stay."""
    for part in parts:
        learner.forward_backward(part, loss_fn)
    norm = learner.optim_step(learning_rate=0.0).grad_norm
    learner.publish()
    return norm


@pytest.mark.slow
def test_gradients_of_several_calls_add_up_to_that_of_one(learner: vf.Learner) -> None:
    samples = forked_samples(1)
    assert len(samples) > 6
    whole = norm_of(learner, samples)
    assert norm_of(learner, samples[:5], samples[5:]) == pytest.approx(whole, rel=1e-5)
    assert norm_of(learner, samples[:5]) != pytest.approx(whole, rel=1e-2)


def test_each_call_has_its_metrics_and_the_step_those_of_all(learner: vf.Learner) -> None:
    samples = forked_samples(2)
    calls = [learner.forward_backward(part) for part in (samples[:4], samples[4:])]
    step = learner.optim_step(learning_rate=0.0)
    learner.publish()
    assert [call.tokens for call in calls] == [
        sum(sum(each.branch.loss_mask[1:]) for each in part) for part in (samples[:4], samples[4:])
    ]
    for name in ("loss", "kl_v1", "entropy"):
        mean = sum(getattr(call, name) * call.tokens for call in calls) / step.tokens
        assert getattr(step, name) == pytest.approx(mean, rel=1e-6), name


@pytest.mark.slow
@pytest.mark.gate
def test_a_loss_is_chosen_for_each_call(learner: vf.Learner) -> None:
    samples = forked_samples(3)
    named = norm_of(learner, samples, loss_fn="importance_sampling")
    assert norm_of(learner, samples, loss_fn=plain) == pytest.approx(named, rel=1e-6)
    assert norm_of(learner, samples, loss_fn="dro") != pytest.approx(named, rel=1e-2)
    assert norm_of(learner, samples) == pytest.approx(named, rel=1e-6), "none of them stays"


def test_an_exception_leaves_no_half_gradient(learner: vf.Learner) -> None:
    samples, calls = forked_samples(4), 0
    clean = norm_of(learner, samples)

    def breaks(arrays: LossArrays) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("no such thing")
        return plain(arrays)

    learner.forward_backward(samples[:2])
    with pytest.raises(TrainingError, match=r"breaks' raised ValueError: no such thing"):
        learner.forward_backward(samples, loss_fn=breaks)
    with pytest.raises(ConfigError, match="optim_step without a gradient"):
        learner.optim_step(learning_rate=0.0)
    assert norm_of(learner, samples) == pytest.approx(clean, rel=1e-6)


def test_forward_is_what_the_model_says_of_the_trained_tokens(learner: vf.Learner) -> None:
    samples = forked_samples(5)
    with torch.no_grad(), learner.training():
        for sample, found in zip(samples, learner.forward(samples), strict=True):
            ids = torch.tensor([sample.branch.token_ids])
            logits = learner.policy.weights.module(ids, use_cache=False).logits[0].float() / 0.8
            expected = torch.log_softmax(logits[:-1], -1).gather(1, ids[0, 1:, None])[:, 0]
            mask = torch.tensor(sample.branch.loss_mask)
            expected = torch.cat([torch.zeros(1), expected]) * mask
            torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-5)


def test_the_sampler_is_the_learner_and_follows_what_is_published(learner: vf.Learner) -> None:
    before = learner.version
    traces = collect(learner)
    samples = vf.samples(traces)
    for sample, mine in zip(samples, learner.forward(samples), strict=True):
        torch.testing.assert_close(torch.tensor(sample.branch.logprobs), mine, atol=1e-4, rtol=0)
    learner.forward_backward(samples)
    learner.optim_step(learning_rate=1e-3)
    with pytest.raises(ConfigError, match=r"call Learner\.publish"):
        collect(learner)
    assert learner.publish() < 1e-4
    versions = {
        version for t in collect(learner) for b in t.branches for version in b.weight_version
    }
    assert versions == {-1, before + 1}
    evaluation = asyncio.run(vf.evaluate(ENV, learner.sampler(), tasks=2))
    assert max(trace.completion_tokens for trace in evaluation.traces) <= SETTINGS["max_tokens"]


async def test_calls_may_be_made_where_an_event_loop_runs(learner: vf.Learner) -> None:
    traces = await vf.rollouts(ENV, learner.sampler(), TASKS[:2], rollouts_per_example=4)
    rollouts = asyncio.ensure_future(vf.rollouts(ENV, learner.sampler(), TASKS[2:3]))
    await asyncio.sleep(0)
    learner.forward_backward(vf.samples(traces))
    learner.optim_step(learning_rate=0.0)
    learner.publish()
    assert (len(traces) + len(await rollouts)) == 16


def test_a_step_without_signal_takes_none(learner: vf.Learner) -> None:
    steps = learner.policy.optimizer_steps
    state = learner.policy.weights.trainable_state()
    assert learner.forward_backward([]).tokens == 0
    done = learner.optim_step(learning_rate=1.0)
    assert (done.tokens, done.grad_norm, done.skipped) == (0, 0.0, False)
    assert learner.policy.optimizer_steps == steps
    for name, tensor in learner.policy.weights.trainable_state().items():
        assert torch.equal(tensor, state[name])
    collect(learner, 1)  # nothing is unpublished


@pytest.mark.slow
@pytest.mark.gate
def test_a_checkpoint_brings_everything_back(learner: vf.Learner, tmp_path: Path) -> None:
    samples, path = forked_samples(6), tmp_path / "deep" / "checkpoint"

    def step() -> torch.Tensor:
        learner.forward_backward(samples)
        learner.optim_step(learning_rate=1e-3)
        return torch.cat(learner.forward(samples))

    learner.save(path)
    step()
    assert learner.save(path) == path, "it replaces what is there"
    assert [each.name for each in path.parent.iterdir()] == ["checkpoint"]
    steps, next_one = learner.policy.optimizer_steps, step()
    learner.forward_backward(samples)  # and is dropped
    assert learner.load(path) == steps
    assert torch.equal(step(), next_one)
    learner.publish()
    assert export([str(path), "-o", str(tmp_path / "out")]) == 0
    with pytest.raises(ConfigError, match="is no checkpoint; save to another folder"):
        learner.save(tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        learner.load(tmp_path / "none")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lora_rnk": 8}, r"no setting 'lora_rnk'\. Did you mean 'lora_rank'"),
        ({"learning_rate": 1e-3}, r"learning_rate is an argument of Learner\.optim_step"),
        ({"num_generations": 4}, r"num_generations is an argument of vf\.rollouts"),
        ({"advantage": "mean"}, r"`advantages` of vf\.samples"),
        ({"max_steps": 4}, "max_steps is for runs of `vf-rl`"),
        ({"lora_rank": 0}, r"trainer\.args\.lora_rank = 0"),
        ({"inference": "vlm"}, r"inference\.engine = 'vlm': unknown. Did you mean 'vllm'"),
        ({"inference": {"prt": 1}}, r"inference\.prt: unknown key"),
    ],
)
def test_a_wrong_setting_is_reported_before_anything_loads(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        vf.Learner("tiny", **settings)


def test_what_is_called_wrongly_is_reported(learner: vf.Learner) -> None:
    traces: Any = collect(learner, 1)
    with pytest.raises(ConfigError, match=r"takes samples, not Trace: make them with vf\.samples"):
        learner.forward_backward(traces)
    with pytest.raises(ConfigError, match=r"no loss 'importance_smpling'\. Did you mean"):
        learner.forward_backward([], loss_fn="importance_smpling")
    with pytest.raises(ConfigError, match="it is a name or a function"):
        learner.forward_backward([], loss_fn=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="optim_step without a gradient"):
        learner.optim_step(learning_rate=1e-3)
    with pytest.raises(ConfigError, match="learning_rate = nan"):
        learner.optim_step(learning_rate=float("nan"))


def test_other_processes_must_be_able_to_import_a_loss() -> None:
    check_loss(plain, TrainerArgs(), shared=True)
    with pytest.raises(ConfigError, match="a function at the top of a module"):
        check_loss(lambda arrays: arrays.logprobs, TrainerArgs(), shared=True)


def test_a_closed_learner_says_so(learner: vf.Learner) -> None:
    """The last test of this file: it closes the learner that the others share."""
    sampler = learner.sampler()
    learner.close()
    learner.close()
    for call in (
        lambda: learner.forward_backward([]),
        lambda: learner.optim_step(learning_rate=1e-3),
        learner.publish,
        learner.sampler,
        lambda: learner.save("nowhere"),
        lambda: asyncio.run(vf.rollouts(ENV, sampler, TASKS[:1])),
    ):
        with pytest.raises(ConfigError, match="cannot be used any more: it was closed"):
            call()
