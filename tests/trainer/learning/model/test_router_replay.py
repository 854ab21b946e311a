"""The trainer sends tokens to the experts that the engine sent them to."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tests.inference.tiny_serving import running_engine
from tests.trainer.learning.families import BY_NAME
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling
from vf.inference.routers import check_routers, routers_of
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample, micro_batches
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.memory.out_of_memory import unpack
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.model.self_test import choose_forward

FAMILIES = [
    "Qwen3-MoE",
    "Mixtral",
    "gpt-oss",
    "DeepSeek-V3, Kimi-K2",
    "GLM-4-MoE",
    "MiniMax-M2",
    "Gemma 4 MoE",
]
REFUSED = {"Phi-MoE", "Llama 4 (text)", "Llama 4"}
CHOSEN, EXPERTS = 2, 4  # of each token, in all of these


def prompts() -> list[list[int]]:
    """Return three that begin alike, and one that does not."""
    generator = torch.Generator().manual_seed(0)
    begin, *own = (torch.randint(3, 300, (n,), generator=generator).tolist() for n in (40, 3, 5, 7))
    return [*(begin + each for each in own), own[0] * 4]


def sampled(model: Any) -> list[Branch]:
    """Return an answer of two turns for each prompt, with the engine's experts."""

    async def one(engine: EmbeddedEngine, seed: int, prompt: list[int]) -> Branch:
        branch = Branch()
        for turn, context in enumerate((prompt, [9, 8, 7])):
            known = len(branch.experts)
            sampling = Sampling(6, temperature=0.9, seed=seed, experts_from=known)
            answer = await engine.generate(branch.token_ids + context, sampling, [])
            branch.add_context(context, turn)
            branch.add_sampled(answer.token_ids, answer.logprobs, answer.versions, turn)
            branch.experts += answer.experts
        return branch

    async def all_at_once(engine: EmbeddedEngine) -> list[Branch]:
        return await asyncio.gather(*(one(engine, *each) for each in enumerate(prompts())))

    with running_engine(model, max_seq_len=128, record_experts=True) as engine:
        return asyncio.run(all_at_once(engine))


def shifted(branch: Branch) -> list[bytes]:
    """Return other experts than a branch's, for some of its tokens."""
    rows = np.frombuffer(b"".join(branch.experts), "<u2").reshape(len(branch.experts), -1).copy()
    rows[::3] = (rows[::3] + 1) % EXPERTS
    return [row.tobytes() for row in rows]


def forced_by_hand(model: Any, sample: Sample) -> torch.Tensor:
    """Return log p of a sequence's trained tokens, with routers that have the choice built in."""
    experts = np.frombuffer(b"".join(sample.branch.experts), "<u2").astype(np.int64)
    layers = torch.from_numpy(experts).view(len(sample) - 1, -1, CHOSEN).unbind(1)
    routers = routers_of(model)
    for router, chosen in zip(routers, layers, strict=True):

        def choose(states: torch.Tensor, router: Any = router, chosen: Any = chosen) -> Any:
            logits = states.reshape(-1, states.shape[-1]) @ router.weight.mT
            likely = logits.softmax(-1).gather(1, chosen)
            return logits, likely, chosen  # norm_topk_prob is off in this family's model

        router.forward = choose
    ids = torch.tensor([sample.branch.token_ids])
    logprobs = model(input_ids=ids[:, :-1], use_cache=False).logits.log_softmax(-1)
    for router in routers:
        del router.forward
    found: torch.Tensor = logprobs[0].gather(1, ids[0, 1:, None])[:, 0]
    return found[torch.tensor(sample.branch.loss_mask[1:], dtype=torch.bool)]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_engine_recorded_is_what_the_trainer_chooses(name: str) -> None:
    model = BY_NAME[name].model()
    samples = [Sample(branch, 1.0) for branch in sampled(model)]
    assert all(len(each.branch.experts) == len(each) - 1 for each in samples)
    forward = choose_forward(model, 128)
    forward.follow("replay")
    batches = pack(samples, 10**6) if forward.how == "packed" else micro_batches(samples, 10**6)
    for batch in batches:
        with forward.active():
            logprobs, *_ = forward(batch, 0.9)
        gaps = logprobs - batch.sampler_logprobs[batch.loss_mask]
        assert gaps.abs().max() < 1e-5
        compared, different = forward.compared
        tokens = sum(map(len, samples)) if batch.tree is None else len(batch.tree)
        assert compared >= (tokens - len(samples)) * len(routers_of(model))
        assert different == 0


@pytest.mark.slow
@pytest.mark.gate
def test_every_family_of_mixtures_is_replayed_or_refused() -> None:
    refused: set[tuple[str, bool]] = set()
    for name, family in BY_NAME.items():
        model = family.model().to("meta")
        if not routers_of(model):
            continue
        try:
            check_routers(model)
        except ValueError as error:
            refused.add((name, "cannot be replayed" in str(error)))
    assert refused == {(name, True) for name in REFUSED}


@pytest.mark.parametrize(
    ("way", "how"), [("packed", "replay"), ("padded", "replay"), ("packed", "compare")]
)
def test_given_experts_are_used_with_the_weights_that_the_router_has_for_them(
    way: Literal["packed", "padded"], how: Literal["replay", "compare"]
) -> None:
    model = BY_NAME["Qwen3-MoE"].model()
    model.set_experts_implementation("eager")  # grouped products are in float32 at most
    branches = sampled(model)
    for branch in branches:
        branch.experts[:] = shifted(branch)
    model.double()
    samples = [Sample(branch, 1.0) for branch in branches]
    [batch] = (
        pack(samples, 10**6, share=False) if way == "packed" else micro_batches(samples, 10**6)
    )
    expected = torch.cat([forced_by_hand(model, row) for row in unpack(batch)])
    forward = Forward(model, way)
    forward.follow(how)
    with forward.active():
        found, *_ = forward(batch, 1.0)
        compared, different = forward.compared
        gaps = (found.double() - expected).abs()
        if how == "compare":
            assert gaps.max() > 0.01
        else:
            assert gaps.max() < 1e-5
            for one, other in zip(gradients(model, found), gradients(model, expected), strict=True):
                assert (one - other).norm() < 1e-5 * other.norm()
    assert 0.2 < different / compared < 0.6


def gradients(model: Any, values: torch.Tensor) -> list[torch.Tensor]:
    weights = [each for router in routers_of(model) for each in router.parameters()]
    factors = torch.arange(1.0, len(values) + 1)
    return [*torch.autograd.grad((values * factors).sum(), weights)]
