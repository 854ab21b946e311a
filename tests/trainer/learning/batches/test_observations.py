"""The loss on observations: of which tokens, its gradient, and the policy's beside it."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer.learning.forked_samples import forked_samples
from tests.trainer.learning.losses.test_losses_update import gradients, policy, updated
from tests.trainer.learning.memory.test_out_of_memory import Shortages
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample, collate
from vf.trainer.learning.batches.normalisation import weighted
from vf.trainer.learning.batches.observations import observed
from vf.trainer.learning.memory.out_of_memory import unpack
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.objective import UpdateStats
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.metrics import update_metrics

COEF = 0.3


def samples() -> list[Sample]:
    """Return rollouts of several turns that share prefixes, some of two branches."""
    found = [each for each in forked_samples(3) if len(each) <= 64]
    return [replace(each, rollout=str(number // 2)) for number, each in enumerate(found)]


def naive_observed(mask: list[int]) -> list[int]:
    """Return the places of context that follows context, once something was sampled."""
    return [
        place
        for place in range(2, len(mask))
        if not mask[place] and not mask[place - 1] and any(mask[1:place])
    ]


def test_observations_are_the_context_after_what_was_sampled() -> None:
    rng = random.Random(0)
    masks = [[0, 0, 1, 1, 0, 0, 0, 1, 0, 0], [1, 0, 0], [0], [0, 1]]
    masks += [[rng.randint(0, 1) for _ in range(12)] for _ in range(50)]
    assert observed(masks[0]).nonzero()[0].tolist() == [5, 6, 9]
    for mask in masks:
        assert observed(mask).nonzero()[0].tolist() == naive_observed(mask)


def expected_gradient(made: Any, batch: list[Sample], kind: str) -> tuple[dict[str, Any], float]:
    """Return what the loss adds to the gradient, in float64, and the mean over observed tokens.

    The mean of each rollout's −log p, at temperature 1; and of these the mean, weighted as the
    rollouts' trained tokens are.
    """
    model = deepcopy(made.model).double()
    trained: Counter[Any] = Counter()
    own: dict[Any, list[torch.Tensor]] = {}
    for sample in batch:
        branch = sample.branch
        every = model(input_ids=torch.tensor([branch.token_ids])).logits[0].log_softmax(-1)
        trained[sample.rollout] += sum(branch.loss_mask[1:])
        for place in naive_observed(branch.loss_mask):
            nll = -every[place - 1, branch.token_ids[place]]
            own.setdefault(sample.rollout, []).append(nll)
    share = {
        "token": {key: n / trained.total() for key, n in trained.items()},
        "sequence": dict.fromkeys(trained, 1 / len(trained)),
        "fixed": {key: n / 20 / len(trained) for key, n in trained.items()},
    }[kind]
    loss = torch.stack([share[key] * torch.stack(each).mean() for key, each in own.items()]).sum()
    torch.autograd.backward(COEF * loss)
    every_one = torch.cat([torch.stack(each) for each in own.values()])
    slopes = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return slopes, every_one.mean().item()


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("token", {}),
        ("token", {"packing": False, "micro_batch_tokens": 80}),
        ("sequence", {"micro_batch_tokens": 80, "temperature": 0.7}),
        ("fixed", {"fixed_length": 20, "share_prefixes": False, "use_lora": False}),
    ],
)
def test_it_adds_its_gradient_and_leaves_that_of_the_policy(kind: str, args: Any) -> None:
    settings: dict[str, Any] = {"max_seq_len": 64, "loss_normalisation": kind, **args}
    batch = samples()
    made = policy(**settings, observation_loss_coef=COEF)
    slopes, mean = expected_gradient(made, batch, kind)
    without, plain = updated(policy(**settings), batch)
    found, both = updated(made, batch)
    assert slopes.keys() == found.keys()
    for name, slope in slopes.items():
        gap = found[name] - without[name] - slope
        assert gap.norm() <= 1e-4 * (slope.norm() + without[name].norm()) + 1e-7, name
    count = sum(len(naive_observed(each.branch.loss_mask)) for each in batch)
    assert (both.observed_tokens, plain.observed_tokens, plain.observation_loss) == (count, 0, 0.0)
    assert both.observation_loss == pytest.approx(mean, rel=1e-5)
    assert both.tokens == plain.tokens
    assert both.kl_v1 == pytest.approx(plain.kl_v1, rel=1e-6)


@pytest.fixture(scope="module")
def made() -> Policy:
    return policy(max_seq_len=64, observation_loss_coef=COEF)


@pytest.mark.parametrize("head", ["linear", "model", "whole"])
@pytest.mark.parametrize("how", ["packed", "padded"])
def test_it_is_at_temperature_one_however_logits_are_made(
    made: Policy, head: Any, how: Any
) -> None:
    batch = weighted(samples(), made.args)
    [micro] = made.budget.pack(batch, packed=how == "packed", share=True)
    forward = Forward(made.weights.module, how, head)
    with torch.no_grad():
        with forward.active():
            found = forward(micro, 0.5, observed=True).observed
            assert forward(micro, 0.5).observed is None
        expected = [
            (made.model(input_ids=torch.tensor([branch.token_ids])).logits[0].log_softmax(-1))[
                place - 1, branch.token_ids[place]
            ]
            for branch in (each.branch for each in unpack(micro))
            for place in naive_observed(branch.loss_mask)
        ]
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("packing", [True, False])
def test_a_step_in_parts_or_short_of_memory_has_the_same_gradient(packing: bool) -> None:
    settings: dict[str, Any] = {"max_seq_len": 64, "observation_loss_coef": COEF}
    settings |= {"packing": packing, "micro_batch_tokens": 200}
    batch = samples()
    expected = gradients(policy(**settings), batch)
    made = policy(**settings)
    shortages = Shortages(made, {2}, backward=True)
    late = [each for each in batch if each.rollout in ("0", "1")]  # whole rollouts

    def in_parts(_: list[Sample]) -> UpdateStats:
        made.accumulate([each for each in batch if each not in late])
        made.accumulate(late)
        return made.finish()

    made.update = in_parts  # type: ignore[method-assign, assignment]
    for name, gradient in gradients(made, batch).items():
        gap = (gradient - expected[name]).norm()
        assert gap <= 1e-4 * expected[name].norm() + 1e-9, name
    assert shortages.seen > 2


def test_a_sample_that_is_cut_observes_what_is_left() -> None:
    branch = Branch()
    branch.add_context([1, 2, 3], 0)
    branch.add_sampled([4, 5], [-1.0, -1.0], [0, 0], 0)
    branch.add_context([6, 7, 8, 9], 1)
    settings = {"max_seq_len": 7, "max_prompt_len": 4, "max_tokens": 2}
    made = policy(**settings, long_sequences="truncate", observation_loss_coef=COEF)
    stats = made.update([Sample(branch, 1.0)])
    assert (stats.too_long, stats.observed_tokens) == (1, 1)  # of 7, 8 and 9


def test_a_micro_batch_comes_back_as_it_was() -> None:
    args = TrainerArgs(observation_loss_coef=COEF)
    made = collate(weighted(samples(), args))
    assert made.observation_weights is not None
    again = collate(unpack(made)).observation_weights
    assert again is not None
    assert torch.equal(again, made.observation_weights)


def test_metrics_weigh_optimizer_steps_by_what_they_observed() -> None:
    made = policy(max_seq_len=64, observation_loss_coef=COEF)
    stats = made.update(samples())
    two = [
        replace(stats, observation_loss=1.0, observed_tokens=3),
        replace(stats, observation_loss=5.0, observed_tokens=1),
    ]
    found = update_metrics(two, observing=True)
    assert (found["observation_loss"], found["tokens/observed"]) == (2.0, 4)
    none = update_metrics([replace(stats, observed_tokens=0)], observing=True)
    assert none["tokens/observed"] == 0
    assert "observation_loss" not in none
    assert "tokens/observed" not in update_metrics(two)
