"""Requests share the computed prefix of their prompts, and never one of earlier weights."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.inference.tiny_serving import (
    generate_all,
    load_model,
    plain_logprobs,
    running_engine,
)
from tests.waiting import until
from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling

PREFIX = [40 + index % 60 for index in range(96)]
NEVER = [-1]


def change_weights(engine: EmbeddedEngine) -> None:
    with engine.paused(), torch.no_grad():
        engine.model.get_input_embeddings().weight.mul_(1.5)


def processed_tokens(engine: EmbeddedEngine, prompts: list[list[int]]) -> list[int]:
    """Sample two tokens for each prompt in turn; return how many tokens its first pass computed."""
    counts: list[int] = []
    hook = engine.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: counts.append(args[0].numel())
    )
    for prompt in prompts:
        generate_all(engine, [(prompt, Sampling(2, seed=0))], NEVER)
    hook.remove()
    return counts[::2]


def assert_exact(engine: EmbeddedEngine, prompt: list[int], completion: Completion) -> None:
    expected = plain_logprobs(engine, prompt, completion.token_ids)
    assert completion.logprobs == pytest.approx(expected, abs=1e-3)


def test_a_prefix_is_computed_once_until_the_weights_change() -> None:
    first, second = [*PREFIX, 1, 2, 3], [*PREFIX, 7, 8, 9, 10]
    with running_engine(load_model()) as engine:
        assert processed_tokens(engine, [first, second]) == [len(first), 4]
        engine.publish(1)
        assert processed_tokens(engine, [second, first]) == [len(second), 3]


def test_logprobs_are_exact_with_a_shared_prefix_and_after_a_publish() -> None:
    prompts = [[*PREFIX, token] for token in range(5, 17)]
    requests = [(prompt, Sampling(6, seed=prompt[-1])) for prompt in prompts]
    with running_engine(load_model()) as engine:
        for version in range(3):
            engine.publish(version)
            for (prompt, _), completion in zip(
                requests, generate_all(engine, requests, NEVER), strict=True
            ):
                assert_exact(engine, prompt, completion)
            change_weights(engine)


@pytest.mark.slow
def test_requests_under_way_at_a_publish_do_not_hand_on_their_prefix() -> None:
    with running_engine(load_model()) as engine:
        seen: list[Completion] = []

        async def read() -> None:
            async for completion in engine.stream(PREFIX, Sampling(300, seed=0), NEVER):
                seen.append(completion)

        async def main() -> list[Completion]:
            reading = asyncio.create_task(read())
            await until(lambda: len(seen) > 3)
            await asyncio.to_thread(change_weights, engine)
            await asyncio.to_thread(engine.publish, 1)
            await until(lambda: len(seen[-1].token_ids) > 48)  # it completes pages
            fresh = [
                await engine.generate([*PREFIX, 9], Sampling(4, seed=1), NEVER) for _ in range(2)
            ]
            await reading
            return fresh

        for completion in asyncio.run(main()):
            assert_exact(engine, [*PREFIX, 9], completion)
        engine.publish(2)  # nothing is under way: prefixes are shared again
        assert processed_tokens(engine, [[*PREFIX, 1], [*PREFIX, 2]]) == [len(PREFIX) + 1, 1]


def test_requests_that_come_at_once_compute_what_they_share_once() -> None:
    requests = [([*PREFIX, token], Sampling(2, seed=token)) for token in range(5, 11)]
    counts: list[int] = []
    with running_engine(load_model()) as engine:
        hook = engine.model.get_input_embeddings().register_forward_pre_hook(
            lambda _, args: counts.append(args[0].numel())
        )
        answers = generate_all(engine, requests, NEVER)
        hook.remove()
        # Of all tokens, the last that is sampled is never fed back.
        assert sum(counts) == len(PREFIX) + len(requests) * 2
        for (prompt, _), answer in zip(requests, answers, strict=True):
            assert_exact(engine, prompt, answer)
