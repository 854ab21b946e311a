"""Tokens of truncated sampling are trained over the same support: on policy, ratios are 1."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
import torch

from tests.inference.tiny_serving import running_engine
from vf.inference.completions import Completion
from vf.inference.model import Sampling
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample, collate
from vf.trainer.learning.batches.sampling_support import Supports
from vf.trainer.learning.memory.out_of_memory import Work, unpack
from vf.trainer.learning.model.head import head_logprobs, pick
from vf.trainer.learning.old_logprobs import attach, by_tokens
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

TEMPERATURE = 1.3
FILTERED = (
    Sampling(12, TEMPERATURE, top_p=0.9),
    Sampling(12, TEMPERATURE, top_k=7),
    Sampling(12, TEMPERATURE, min_p=0.05),
    Sampling(12, TEMPERATURE, top_p=0.95, top_k=30),
    Sampling(12, TEMPERATURE),
)


@pytest.mark.parametrize("deterministic", [False, True], ids=["usual", "deterministic"])
def test_ratios_of_sampled_tokens_are_one(deterministic: bool) -> None:
    args = TrainerArgs(
        deterministic=deterministic,
        bf16=False,
        max_prompt_len=96,
        max_seq_len=192,
        temperature=TEMPERATURE,
    )
    policy = Policy("tiny", args)
    rng = random.Random(0)
    begin = [rng.randrange(512) for _ in range(60)]
    asked = [
        (begin + [rng.randrange(512)] * (seed % 3), sampling.with_(seed=seed))
        for seed, sampling in enumerate(FILTERED * 4)
    ]
    with running_engine(
        policy.weights.module, deterministic=deterministic, max_seq_len=192
    ) as engine:

        async def all_at_once() -> list[Completion]:
            return await asyncio.gather(*(engine.generate(*each, []) for each in asked))

        answers = asyncio.run(all_at_once())
    samples = []
    for (prompt, sampling), answer in zip(asked, answers, strict=True):
        branch = Branch()
        branch.add_context(prompt, 0)
        branch.add_sampled(answer.token_ids, answer.logprobs, answer.versions, 0, answer.supports)
        assert bool(branch.supports) == sampling.filtered
        samples.append(Sample(branch, 0.0))
    sizes = [len(each) for answer in answers for each in answer.supports]
    assert min(sizes) < 5 < max(sizes)
    for sample, found in zip(samples, policy.sample_logprobs(samples), strict=True):
        gaps = found - torch.tensor(sample.branch.logprobs)
        assert gaps.expm1().abs().max() < 1e-5
        assert not deterministic or not gaps.any()
    # And not by chance: over the whole vocabulary they are others.
    [whole] = policy.sample_logprobs([replace(samples[0], branch=without(samples[0].branch))])
    assert (whole - torch.tensor(samples[0].branch.logprobs)).expm1().abs().max() > 0.01


def without(branch: Branch) -> Branch:
    return replace(branch, supports=[])


def test_logprobs_entropies_and_gradients_are_those_of_float64() -> None:
    torch.manual_seed(0)
    width, vocabulary = 8, 40
    hidden, rows = torch.randn(6, width), torch.tensor([0, 3, 0, 5, 1, 2, 3])
    lists = [[1, 4, 9], [0, 2], [], [7], list(range(40)), [3, 38, 39], [2, 5]]
    targets = torch.tensor([4, 2, 11, 7, 0, 39, 5])
    layer = torch.nn.Linear(width, vocabulary, bias=False)
    coef = torch.linspace(-1.0, 1.0, 7)

    def gradients(
        values: tuple[torch.Tensor, torch.Tensor], *of: torch.Tensor
    ) -> list[torch.Tensor]:
        weights = coef.to(values[0].dtype)
        return [*torch.autograd.grad((values[0] * weights + 0.3 * values[1]).sum(), of)]

    exact = [each.detach().double().requires_grad_() for each in (hidden, layer.weight)]
    logprobs, entropies = [], []
    for row, target, ids in zip(rows.tolist(), targets.tolist(), lists, strict=True):
        z = (exact[1] @ exact[0][row] / TEMPERATURE)[ids or list(range(vocabulary))]
        p = z.softmax(0)
        logprobs.append(z.log_softmax(0)[(ids or list(range(vocabulary))).index(target)])
        entropies.append(-(p * p.log()).sum())
    expected = torch.stack(logprobs), torch.stack(entropies)
    slopes = gradients(expected, *exact)
    hidden.requires_grad_()
    supports = Supports.of(lists)
    for chunk in (None, 2 * 3 * vocabulary):
        found = head_logprobs(
            layer, hidden, rows, targets, TEMPERATURE, supports,
            entropy_gradient=True, chunk_logits=chunk,
        )[:2]  # fmt: skip
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours - theirs).abs().max() < 1e-5
        for ours, theirs in zip(gradients(found, hidden, layer.weight), slopes, strict=True):
            assert (ours - theirs).abs().max() < 1e-5
    whole = pick(layer(hidden) / TEMPERATURE, rows, targets, supports, gradient=True)[:2]
    for ours, theirs in zip(whole, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-5


def forked() -> list[Sample]:
    """Return samples with the same tokens and other supports, and one without any."""
    made = []
    for own in ([[3], [2, 3]], [[3, 4], []], []):
        branch = Branch()
        branch.add_context([1, 2], 0)
        branch.add_sampled([3, 3], [-0.5, -0.7], [0, 0], 0, own)
        branch.add_context([5], 0)
        made.append(Sample(branch, 1.0))
    return made


def test_micro_batches_keep_them_apart() -> None:
    samples = forked()
    batch = collate(samples)
    assert batch.supports is not None
    assert batch.supports.lists() == [[3], [2, 3], [3, 4], [], [], []]
    again = unpack(batch)
    assert [each.branch.supports for each in again] == [
        [[], [], [3], [2, 3], []],
        [[], [], [3, 4], [], []],
        [[]] * 5,
    ]
    assert collate(again).supports.lists() == batch.supports.lists()  # type: ignore[union-attr]
    values = torch.arange(1.0, 7.0)
    known = by_tokens([Work(batch, reference=values)])
    found = [each.old_logprobs[2:4] for each in attach(samples, known)]
    assert found == [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    assert collate(samples[2:]).supports is None
