"""What samples attach to tokens, experts and a teacher's distribution, stays theirs when packed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.learning.families import BY_NAME
from tests.trainer.learning.forked_samples import forked_samples
from vf.trainer.learning.attention import prefix_tree
from vf.trainer.learning.batches.batch import MicroBatch, Sample
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.learning.memory.out_of_memory import Work
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.old_logprobs import attach, by_tokens, samples_for_pass
from vf.trainer.settings.config import TrainerArgs

VOCABULARY, CHOSEN, EXPERTS, LAYERS, TOP = 300, 2, 4, 2, 3


def with_attachments(seed: int) -> list[Sample]:
    """Return samples of forked rollouts, each with one of two writers of experts and teachers.

    A writer attaches the same to the same tokens, so that only its own samples can share them.
    """
    rng = random.Random(seed)
    return [attach_by(rng.randrange(2), sample) for sample in forked_samples(seed)]


def attach_by(writer: int, sample: Sample) -> Sample:
    branch = sample.branch
    branch.token_ids[:] = [token % VOCABULARY for token in branch.token_ids]
    for place in range(1, len(branch)):
        chosen = random.Random(f"{writer} {branch.token_ids[:place]}").sample(
            range(EXPERTS), CHOSEN
        )
        branch.experts.append(np.array(chosen * LAYERS, "<u2").tobytes())
    taught = []
    for place in range(1, len(branch)):
        if branch.loss_mask[place]:
            generator = torch.Generator().manual_seed(sum(branch.token_ids[:place]) * 2 + writer)
            taught.append(torch.randn(VOCABULARY, generator=generator).log_softmax(-1))
    return replace(sample, likeliest=Likeliest.of(torch.stack(taught), TOP))


def mixture() -> Any:
    torch.manual_seed(0)
    model = BY_NAME["Qwen3-MoE"].model()
    model.set_experts_implementation("eager")  # grouped products are in float32 at most
    return model.double()


def gradients(forward: Forward, batches: list[MicroBatch]) -> list[torch.Tensor]:
    """Return the gradient of a sum in which each token counts by its sample's advantage."""
    forward.model.zero_grad()
    for batch in batches:
        with forward.active():
            answer = forward(batch, 1.0, taught=True)
            assert answer.teacher_kl is not None
            weights = batch.advantages[batch.loss_mask]
            torch.autograd.backward(((answer.logprobs + answer.teacher_kl) * weights).sum())
    return [p.grad.clone() for p in forward.model.parameters() if p.grad is not None]


@pytest.fixture
def every_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_tree, "SEGMENT_COST", 0)
    monkeypatch.setattr(prefix_tree, "MERGE_COST", 0.0)


@pytest.mark.usefixtures("every_fork")
@pytest.mark.parametrize("seed", range(6))
def test_the_gradient_does_not_depend_on_sharing(seed: int) -> None:
    samples = with_attachments(seed)
    forward = Forward(mixture(), "packed")
    forward.follow("replay")
    shared = pack(samples, 10**6)
    apart = pack(samples, 10**6, share=False)
    assert sum(batch.computed for batch in shared) < sum(batch.computed for batch in apart)
    for one, other in zip(gradients(forward, shared), gradients(forward, apart), strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm() + 1e-9


@pytest.mark.usefixtures("every_fork")
def test_log_probabilities_of_equal_tokens_find_their_own_experts() -> None:
    first = next(sample for sample in with_attachments(0) if len(sample) > 8)
    experts = [np.array([3, 2] * LAYERS, "<u2").tobytes()] * len(first.branch.experts)
    samples = [first, replace(first, branch=replace(first.branch, experts=experts))]
    forward = Forward(mixture(), "packed")
    forward.follow("replay")

    def values(sample: Sample) -> list[float]:
        [batch] = pack([sample], 10**6)
        with forward.active(), torch.no_grad():
            return forward(batch, 1.0).logprobs.tolist()

    work = []
    for batch in pack(samples, 10**6):
        with forward.active(), torch.no_grad():
            work.append(Work(batch, forward(batch, 1.0).logprobs))
    args = TrainerArgs(max_seq_len=512, max_prompt_len=256)
    for sample in attach(samples_for_pass(samples, args, "old_logprobs"), by_tokens(work)):
        trained = zip(sample.old_logprobs, sample.branch.loss_mask, strict=True)
        found = [value for place, (value, mask) in enumerate(trained) if mask and place]
        assert found == pytest.approx(values(sample), abs=1e-6)
