"""Normalisation, KL, entropy bonus and a user's own loss, in whole updates of the tiny model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.learning.test_policy import samples
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError, TrainingError
from vf.traces.task import Task
from vf.traces.trace import Branch, Score, Trace
from vf.trainer.learning.batches.batch import Sample, build_samples, micro_batches
from vf.trainer.learning.batches.normalisation import Totals, scale, weighted
from vf.trainer.learning.losses.custom_loss import load_loss
from vf.trainer.learning.losses.policy_gradient import LossArrays, TokenLosses, build_loss
from vf.trainer.learning.objective import UpdateStats
from vf.trainer.learning.policy import Policy
from vf.trainer.run.group import Group
from vf.trainer.saving.checkpoint import Progress, load_checkpoint, save_checkpoint
from vf.trainer.settings.config import TrainerArgs

COPY: dict[str, Any] = {"use_lora": False, "reference_model": "tiny"}
SHORT: dict[str, Any] = {"max_seq_len": 32, "max_prompt_len": 16, "max_grad_norm": 1e9}


def policy(**args: Any) -> Policy:
    torch.manual_seed(0)  # adapters begin alike
    made = Policy("tiny", TrainerArgs(**{**SHORT, **args}))
    if made.args.use_lora:
        shake(made)
    return made


def shake(policy: Policy) -> None:
    """Move the adapter away from doing nothing."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


def updated(policy: Policy, batch: list[Sample]) -> tuple[dict[str, torch.Tensor], UpdateStats]:
    """Return the gradient with which the optimizer steps, by parameters' names, and the stats."""
    seen: dict[str, torch.Tensor] = {}

    def note(*_: object) -> None:
        for name, master in policy.weights.masters.named():
            if master.grad is not None:
                seen[name] = master.grad.clone()

    handle = policy.optimizer.register_step_pre_hook(note)
    stats = policy.update(batch)
    handle.remove()
    return seen, stats


def gradients(policy: Policy, batch: list[Sample]) -> dict[str, torch.Tensor]:
    """Return the gradient with which the optimizer steps, by parameters' names."""
    return updated(policy, batch)[0]


def naive_terms(policy: Policy, sample: Sample) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """Return log p, the distribution's log-probabilities and the place of each trained token."""
    branch = sample.branch
    logits = policy.model(input_ids=torch.tensor([branch.token_ids])).logits[0]
    every = (logits / policy.args.temperature).log_softmax(-1)
    return [
        (every[t - 1][branch.token_ids[t]], every[t - 1], t)
        for t in range(1, len(branch))
        if branch.loss_mask[t]
    ]


def naive_gradients(policy: Policy, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    policy.model.zero_grad()
    torch.autograd.backward(loss)
    found = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    return found


def assert_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=2e-3, atol=2e-6)


@pytest.mark.parametrize(
    ("how", "micro_batch_tokens"), [({}, 40), ({"use_lora": False, "temperature": 0.8}, 2048)]
)
@pytest.mark.parametrize("kind", ["token", "sequence", "fixed"])
def test_a_normalisation_matches_the_loop_in_any_split(
    kind: str, micro_batch_tokens: int, how: dict[str, Any]
) -> None:
    settings = how | {"loss_normalisation": kind, "fixed_length": 20 if kind == "fixed" else None}
    made = policy(**settings, micro_batch_tokens=micro_batch_tokens)
    batch = samples()
    counts = [sum(sample.branch.loss_mask) for sample in batch]
    loss = torch.zeros(())
    for sample, count in zip(batch, counts, strict=True):
        own = torch.zeros(())
        for logprob, _, t in naive_terms(made, sample):
            own = own - (logprob - sample.branch.logprobs[t]).exp() * sample.advantage
        divisor = {"token": sum(counts), "sequence": 6 * count, "fixed": 6 * 20}[kind]
        loss = loss + own / divisor
    expected = naive_gradients(made, loss)
    found, stats = updated(made, batch)
    assert_equal(found, expected)
    norm = sum(gradient.square().sum() for gradient in expected.values()) ** 0.5
    assert stats.loss == pytest.approx(loss.item(), rel=1e-4)
    assert stats.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert stats.tokens == sum(counts)


@pytest.mark.parametrize("kind", ["token", "sequence", "fixed"])
def test_weights_are_those_of_the_whole_step(kind: Any) -> None:
    """However samples are shared out, the weighted tokens sum to what the definition says."""
    batch, args = samples(1, 9), TrainerArgs(loss_normalisation=kind)
    total = sum(
        float((mb.weights * mb.loss_mask).sum())
        for share in (batch[:2], batch[2:])
        for mb in micro_batches(
            [s for s in weighted(batch, args) if s.branch in [x.branch for x in share]], 2048
        )
    )
    tokens = sum(sum(sample.branch.loss_mask) for sample in batch)
    expected = tokens / (9 * args.max_seq_len) if kind == "fixed" else 1.0
    total *= scale(Totals.of(batch), args)
    assert total == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss_fn", ["importance_sampling", "gspo"])
@pytest.mark.parametrize("kind", ["sequence", "fixed"])
def test_a_rollout_weighs_the_same_however_many_branches_it_has(loss_fn: Any, kind: Any) -> None:
    """On-policy, where r = s = 1: the gradient of a token's logprob is −A·w, w = 1/(R·n), 1/(R·F).

    R = 2 rollouts, of n = 3 and of n = 1 + 4 + 1 trained tokens.
    """
    args = TrainerArgs(
        loss_fn=loss_fn, loss_normalisation=kind, fixed_length=7 if kind == "fixed" else None
    )

    def rollout(reward: float, *sizes: int) -> Trace:
        trace = Trace("test", Task("t", "?"), seed=0, score=Score(reward, reward))
        for size in sizes:
            branch = Branch()
            branch.add_context([1, 2], 0)
            branch.add_sampled([3] * size, [-1.5] * size, [0] * size, 0)
            trace.branches.append(branch)
        return trace

    group = Group(Task("t", "?"), [rollout(1.0, 3), rollout(0.0, 1, 4, 1)])
    [built] = build_samples([group], args)
    [batch] = micro_batches(weighted(built, args), 2048)
    logprobs, mask = batch.sampler_logprobs.clone().requires_grad_(), batch.loss_mask
    arrays = LossArrays(logprobs, batch.sampler_logprobs, batch.advantages, mask)
    losses = build_loss(args)(arrays)
    assert isinstance(losses, TokenLosses)
    loss = (losses.values * batch.weights).sum() * scale(Totals.of(built), args)
    torch.autograd.backward(loss)
    assert logprobs.grad is not None
    for advantage, tokens in ((0.5, 3), (-0.5, 6)):
        own = logprobs.grad[(batch.advantages == advantage) & mask]
        divisor = 2 * (tokens if kind == "sequence" else 7)
        assert own.tolist() == pytest.approx([-advantage / divisor] * tokens)


def base_logprobs(made: Policy, batch: list[Sample]) -> list[dict[int, float]]:
    with torch.no_grad(), made.model.disable_adapter():
        return [{t: float(p) for p, _, t in naive_terms(made, sample)} for sample in batch]


def test_kl_as_a_loss_matches_the_loop() -> None:
    made, batch = policy(kl_penalty_coef=0.5), samples()
    reference = base_logprobs(made, batch)
    total, loss, kl = sum(sum(s.branch.loss_mask) for s in batch), torch.zeros(()), 0.0
    for sample, known in zip(batch, reference, strict=True):
        for logprob, _, t in naive_terms(made, sample):
            ratio = (logprob - sample.branch.logprobs[t]).exp()
            gap = known[t] - logprob
            k3 = gap.exp() - gap - 1
            kl += k3.item() / total
            loss = loss + (0.5 * k3 - ratio * sample.advantage) / total
    assert kl > 1e-4
    expected = naive_gradients(made, loss)
    found, stats = updated(made, batch)
    assert_equal(found, expected)
    assert stats.kl_reference_v3 == pytest.approx(kl, rel=1e-2)
    assert stats.loss == pytest.approx(loss.item(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("discount", [0.0, 0.8])
def test_kl_in_the_advantages_matches_the_loop(discount: float) -> None:
    made = policy(
        kl_penalty_coef=0.3,
        kl_penalty_type="advantage",
        kl_discount_factor=discount,
        micro_batch_tokens=40,
    )
    batch = samples()
    reference = base_logprobs(made, batch)
    gaps = [
        {t: sample.branch.logprobs[t] - p for t, p in known.items()}
        for sample, known in zip(batch, reference, strict=True)
    ]
    every = [gap for row in gaps for gap in row.values()]
    mean, loss = sum(every) / len(every), torch.zeros(())
    for sample, row in zip(batch, gaps, strict=True):
        for logprob, _, t in naive_terms(made, sample):
            ahead = [u for u in sorted(row) if u >= t]
            shaped = sum(0.3 * discount**n * (mean - row[u]) for n, u in enumerate(ahead))
            ratio = (logprob - sample.branch.logprobs[t]).exp()
            loss = loss - ratio * (sample.advantage + shaped) / len(every)
    expected = naive_gradients(made, loss)
    assert_equal(gradients(made, batch), expected)


def test_the_entropy_bonus_matches_the_loop() -> None:
    made, batch = policy(entropy_coef=0.7), samples()
    total, loss = sum(sum(s.branch.loss_mask) for s in batch), torch.zeros(())
    for sample in batch:
        for logprob, every, t in naive_terms(made, sample):
            ratio = (logprob - sample.branch.logprobs[t]).exp()
            entropy = -(every.exp() * every).sum()
            loss = loss - (ratio * sample.advantage + 0.7 * entropy) / total
    expected = naive_gradients(made, loss)
    assert_equal(gradients(made, batch), expected)


def test_asking_the_reference_leaves_the_adapter_as_it_was() -> None:
    made = policy(kl_penalty_coef=1e-12)
    names = {n for n, p in made.model.named_parameters() if p.requires_grad}
    with_kl = gradients(made, samples())
    assert {n for n, p in made.model.named_parameters() if p.requires_grad} == names
    assert_equal(with_kl, gradients(policy(), samples()))


def test_a_frozen_copy_is_the_reference_of_a_full_fine_tune() -> None:
    made = policy(**COPY, kl_penalty_coef=0.1, learning_rate=1e-3)
    first, second = made.update(samples()), made.update(samples())
    assert first.kl_reference_v3 == pytest.approx(0.0, abs=1e-9)
    assert second.kl_reference_v3 > 1e-6
    assert first.kl_reference_v1 == second.kl_reference_v1  # it is frozen


@pytest.mark.parametrize(
    ("args", "rate"),
    [
        ({}, 1.0),
        (COPY, 0.5),
        pytest.param({}, 0.5, marks=pytest.mark.slow),
        pytest.param(COPY, 1.0, marks=pytest.mark.slow),
    ],
)
def test_the_reference_follows_and_a_resumed_one_is_the_same(
    args: dict[str, Any], rate: float, tmp_path: Path
) -> None:
    fixed = args | {"kl_penalty_coef": 0.1, "learning_rate": 1e-3}
    args = fixed | {"reference_update_steps": 2, "reference_update_rate": rate}
    made, stays = policy(**args), policy(**fixed)
    stats = [made.update(samples(seed)) for seed in range(3)]
    far = [stays.update(samples(seed)) for seed in range(3)][-1]
    assert stats[1].kl_reference_v3 > 1e-6
    assert stats[2].kl_reference_v3 < far.kl_reference_v3  # followed after the second
    assert (abs(stats[2].kl_reference_v3) < 1e-9) == (rate == 1.0)
    tokenizer = Renderer.from_pretrained(resolve_model("tiny")).tokenizer
    saved = save_checkpoint(tmp_path, made, tokenizer, Progress(3, 0.0))
    resumed = policy(**args)
    load_checkpoint(saved, resumed)
    for seed in (7, 8):  # the fourth optimizer step moves it again
        ours, theirs = (asdict(each.update(samples(seed))) for each in (made, resumed))
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-8)
        assert seed == 8 or ours["kl_reference_v3"] > 1e-6


LOSSES = """
import torch
from vf.trainer.learning.losses.policy_gradient import LossArrays, TokenLosses, importance_sampling

def counted(arrays):
    values = importance_sampling(arrays).values
    return TokenLosses(values, clipped=(arrays.log_ratio > 0).float())

def shared(arrays):
    values = importance_sampling(arrays).values
    return TokenLosses(values, dropped=(arrays.log_ratio > 0).any())

def mine(arrays):
    # forgets the mask, and is nonsense where nothing is trained
    r = (arrays.logprobs - arrays.sampler_logprobs).exp() + 1e6 * ~arrays.loss_mask
    return -r * arrays.advantages

def summed(arrays):
    return importance_sampling(arrays).values.sum()

def detached(arrays):
    return arrays.logprobs.detach()

def broken(arrays):
    return arrays.no_such_thing

def two(arrays, more):
    return arrays
"""


@pytest.fixture
def losses_py(tmp_path: Path) -> Path:
    path = tmp_path / "my_losses.py"
    path.write_text(LOSSES)
    return path


def test_a_loss_of_ones_own_is_trained_on(losses_py: Path) -> None:
    mine = policy(loss_fn="custom", import_path=f"{losses_py}:mine")
    assert_equal(gradients(mine, samples()), gradients(policy(), samples()))
    known = load_loss("vf.trainer.learning.losses.policy_gradient:importance_sampling")
    assert known.__name__ == "importance_sampling"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("summed", r"returned a tensor of shape \(\); it must return one loss per token"),
        ("detached", "returned values without a gradient"),
        (
            "counted",
            r"returned clipped of shape \(.*\) and torch.float32; it must be a bool per token",
        ),
        ("shared", r"returned dropped of shape \(\) and torch.bool; it must be a bool per token"),
        ("broken", "raised AttributeError: .*no_such_thing"),
    ],
)
def test_a_wrong_loss_of_ones_own_is_named(losses_py: Path, name: str, said: str) -> None:
    with pytest.raises(TrainingError, match=rf"my_losses\.py:{name}' {said}"):
        policy(loss_fn="custom", import_path=f"{losses_py}:{name}").update(samples())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("just_a_name", "must be 'package.module:function'"),
        ("no.such.module:loss", "raised ModuleNotFoundError"),
        ("no_such_file.py:loss", "there is no file"),
        ("vf.trainer.learning.losses.policy_gradient:no_such", "has no function 'no_such'"),
        ("{file}:two", "must take one argument"),
    ],
)
def test_an_import_path_that_leads_nowhere(losses_py: Path, path: str, said: str) -> None:
    with pytest.raises(ConfigError, match="import_path") as error:
        load_loss(path.format(file=losses_py))
    assert said in str(error.value)


def test_clip_and_drop_fractions_and_ratios_are_seen() -> None:
    clipped = policy(loss_fn="ppo").update(samples())
    dropped = policy(loss_fn="dppo", drop_low=1e-4, drop_high=1e-4).update(samples())
    assert 0.0 < clipped.clip_fraction <= 1.0
    assert clipped.drop_fraction == 0.0
    assert 0.0 < dropped.drop_fraction <= 1.0
    quantiles = [getattr(clipped, f"ratio_{n}") for n in ("min", "p01", "p50", "p99", "max")]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] < quantiles[-1]
    assert clipped.kl_v3 > 0.0


@pytest.mark.parametrize(
    ("args", "adapted"),
    [
        ({}, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ({"train_mlp": False}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ({"train_attn": False}, {"gate_proj", "up_proj", "down_proj"}),
        ({"train_attn": False, "train_mlp": False, "train_unembed": True}, {"lm_head"}),
        ({"lora_target_modules": ["q_proj"]}, {"q_proj"}),
    ],
)
def test_lora_by_intent(args: dict[str, Any], adapted: set[str]) -> None:
    made = policy(**args)
    names = [name for name, p in made.model.named_parameters() if p.requires_grad]
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in names} == adapted
    assert made.update(samples()).grad_norm > 0.0
