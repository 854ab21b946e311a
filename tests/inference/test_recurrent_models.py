"""The embedded engine on models with recurrent layers: each token as the whole sequence has it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from tests.inference.test_lora_mixture import adapter, merged
from tests.inference.tiny_serving import generate_all, plain_logprobs, running_engine
from tests.trainer.learning.families import FAMILIES
from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling

RECURRENT = [
    family
    for family in FAMILIES
    if family.kind in ("linear attention", "convolution", "state space")
    and family.name != "Nemotron 3"  # whose bound of time steps is not in every path
]
NEVER = [-1]
LENGTHS = (1, 2, 3, 17, 40)


def prompt_of(length: int, first: int = 3) -> list[int]:
    return [(first + 7 * position) % 90 + 1 for position in range(length)]


def assert_exact(engine: EmbeddedEngine, prompt: list[int], completion: Completion) -> None:
    expected = plain_logprobs(engine, prompt, completion.token_ids)
    assert completion.logprobs == pytest.approx(expected, abs=1e-3)


@contextmanager
def counted(engine: EmbeddedEngine) -> Iterator[list[int]]:
    """Count the tokens of each forward pass."""
    counts: list[int] = []
    hook = engine.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: counts.append(args[0].numel())
    )
    yield counts
    hook.remove()


@pytest.mark.parametrize("family", RECURRENT, ids=lambda family: family.name)
def test_requests_of_all_lengths_at_once_are_exact(family: Any) -> None:
    """Prompts go in pieces, requests end at different times, and conversations continue."""
    requests = [
        (prompt_of(length, first), Sampling(3 + number, seed=number))
        for number, (length, first) in enumerate((n, first) for n in LENGTHS for first in (3, 5, 5))
    ]
    with running_engine(family.model(), max_requests=4, max_batch_tokens=12) as engine:
        answers = generate_all(engine, requests, NEVER)
        for (prompt, _), answer in zip(requests, answers, strict=True):
            assert_exact(engine, prompt, answer)
        longer = [
            ([*prompt, *answer.token_ids, 9, 8, 7][: 60 - number], sampling)
            for number, ((prompt, sampling), answer) in enumerate(
                zip(requests, answers, strict=True)
            )
        ]
        for (prompt, _), answer in zip(longer, generate_all(engine, longer, NEVER), strict=True):
            assert_exact(engine, prompt, answer)


def test_equal_prompts_and_continued_conversations_are_computed_once() -> None:
    prompt = prompt_of(40)
    with running_engine(RECURRENT[1].model(), max_requests=4) as engine:
        with counted(engine) as counts:
            answers = generate_all(engine, [(prompt, Sampling(2, seed=n)) for n in range(4)], NEVER)
        assert sum(counts) == len(prompt) - 1 + 4 * 2, "the last token of the prompt is each one's"
        continued = [*prompt, *answers[0].token_ids, 9, 8]
        with counted(engine) as counts:
            [answer] = generate_all(engine, [(continued, Sampling(2, seed=0))], NEVER)
        assert counts == [2, 1, 1], "the answer's last token and one more, then one by one"
        assert_exact(engine, continued, answer)
        with counted(engine) as counts:
            other = [*prompt[:30], 5]
            [answer] = generate_all(engine, [(other, Sampling(2, seed=0))], NEVER)
        assert counts[0] == 30, "a state cannot be cut"
        assert_exact(engine, other, answer)
        engine.publish(1)
        with counted(engine) as counts:
            generate_all(engine, [(prompt, Sampling(2, seed=0))], NEVER)
        assert counts[0] == len(prompt) - 1


def test_adapters_of_requests_in_one_pass_are_their_own() -> None:
    model = RECURRENT[1].model()
    loras = [None, adapter(model, 2, 1), adapter(model, 4, 2, "linear_attn")]
    prompt = prompt_of(12)

    async def sample(engine: EmbeddedEngine) -> list[Completion]:
        runs = [
            engine.generate(prompt, Sampling(6 + number, seed=number), NEVER, lora)
            for number, lora in enumerate(loras * 2)
        ]
        return await asyncio.gather(*runs)

    with running_engine(model, max_requests=6, max_batch_tokens=16) as engine:
        answers = asyncio.run(sample(engine))
    for answer, lora in zip(answers, loras * 2, strict=True):
        ids = torch.tensor([prompt + answer.token_ids])
        with torch.no_grad():
            logits = merged(model, lora)(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(chosen.tolist(), abs=1e-3)


def test_contexts_that_rest_hold_few_states() -> None:
    """Those of as many contexts as requests may run, each at its end and in its prompt."""
    with running_engine(RECURRENT[1].model(), max_requests=2) as engine:
        generate_all(engine, [(prompt_of(9, n), Sampling(2, seed=n)) for n in range(9)], NEVER)
        caches = [thing for thing in gc.get_objects() if type(thing) is DynamicCache]
        rows = [len(cache.layers[0].conv_states[0]) for cache in caches]
        assert rows == [1] * 4
