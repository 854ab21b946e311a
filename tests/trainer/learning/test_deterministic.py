"""With ``deterministic = true`` a token has one log-probability, to the last bit."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from tests.inference.tiny_serving import running_engine
from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

Prompts = list[list[int]]


def policy_of(
    *, deterministic: bool = True, use_lora: bool = True, train_unembed: bool = False
) -> Policy:
    args = TrainerArgs(
        deterministic=deterministic,
        use_lora=use_lora,
        train_unembed=train_unembed,
        bf16=False,
        max_prompt_len=300,
        max_seq_len=384,
        micro_batch_tokens=1500,
        temperature=0.9,
    )
    torch.manual_seed(0)
    policy = Policy("tiny", args)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:  # zero as they begin
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    return policy


def prompts_of(count: int) -> Prompts:
    """Groups of four with the same prompt; all but a few have one beginning, and some are short."""
    rng = random.Random(0)
    begin = [rng.randrange(512) for _ in range(150)]
    lengths = [0, 1, 2, 7, 30, 31, 32, 90, 140]
    found = []
    for group in range(count // 4):
        own = [rng.randrange(512) for _ in range(1 + lengths[group % len(lengths)])]
        found += [own if group % 3 == 0 else begin + own] * 4
    return found


def generate(engine: EmbeddedEngine, prompts: Prompts, first: int = 0) -> list[Completion]:
    async def all_at_once() -> list[Completion]:
        return await asyncio.gather(
            *(
                engine.generate(prompt, Sampling(8 + seed % 9, temperature=0.9, seed=seed), [])
                for seed, prompt in enumerate(prompts, first)
            )
        )

    return asyncio.run(all_at_once())


@pytest.fixture(
    params=[
        pytest.param("lora", marks=pytest.mark.slow),
        "lora and the head",
        "all weights",
    ]
)
def policy(request: pytest.FixtureRequest) -> Policy:
    lora, head = request.param != "all weights", request.param == "lora and the head"
    return policy_of(use_lora=lora, train_unembed=head)


def test_the_trainer_gives_every_sampled_token_the_engines_bits(policy: Policy) -> None:
    prompts = prompts_of(36)
    module = policy.weights.module
    options = {"max_requests": 64, "max_seq_len": 384, "max_batch_tokens": 300}
    with running_engine(module, deterministic=True, **options) as engine:
        together = generate(engine, prompts)
        engine.publish(1)  # nothing is shared with what was computed before
        alone = [generate(engine, [prompts[i]], i)[0] for i in range(0, 36, 5)]
    assert [each.token_ids for each in alone] == [each.token_ids for each in together[::5]]
    assert [each.logprobs for each in alone] == [each.logprobs for each in together[::5]]
    samples = []
    for prompt, answer in zip(prompts, together, strict=True):
        branch = Branch()
        branch.add_context(prompt, 0)
        branch.add_sampled(answer.token_ids, answer.logprobs, [0] * len(answer.token_ids), 0)
        samples.append(Sample(branch, 0.0))
    for given in (samples, samples[7:8]):
        found = policy.sample_logprobs(given)
        for sample, logprobs in zip(given, found, strict=True):
            assert logprobs.tolist() == sample.branch.logprobs


@pytest.mark.slow
@pytest.mark.gate
def test_its_gradient_is_the_usual_one() -> None:
    found = []
    for deterministic in (True, False):
        policy = policy_of(deterministic=deterministic)
        samples = []
        for index, prompt in enumerate(prompts_of(12)):
            branch = Branch()
            branch.add_context(prompt, 0)
            branch.add_sampled([5 + index, 7, 9 * index], [-3.0] * 3, [0] * 3, 0)
            samples.append(Sample(branch, 1.0 - index % 4))
        policy.accumulate(samples)
        gradients = (each.grad for each in policy.weights.trained)
        found.append([each for each in gradients if each is not None])
    for exact, usual in zip(*found, strict=True):
        assert (exact - usual).norm() <= 2e-5 * usual.norm()  # one processor has 1.02e-5
