"""The embedded engine samples from the very distribution that it reports."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from tests.inference.tiny_serving import (
    generate_all,
    load_model,
    logits,
    naive_distribution,
    plain_logprobs,
    running_engine,
)
from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling

PROMPTS = [[1, *range(20, 20 + length)] for length in (3, 40, 9, 120, 1, 33)]
NEVER = [-1]  # no token has this id, so nothing stops an answer early
WILD = 50.0  # a temperature at which whatever the model has learnt hardly matters


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with running_engine(load_model(), max_batch_tokens=64) as running:
        yield running


def sample(engine: EmbeddedEngine, sampling: Sampling) -> list[tuple[list[int], Completion]]:
    """Sample an answer to each of the prompts, all at once."""
    requests = [(prompt, sampling.with_(seed=k)) for k, prompt in enumerate(PROMPTS)]
    return list(zip(PROMPTS, generate_all(engine, requests, NEVER), strict=True))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logprobs_are_those_of_a_plain_forward(engine: EmbeddedEngine, temperature: float) -> None:
    for prompt, completion in sample(engine, Sampling(24, temperature)):
        plain = plain_logprobs(engine, prompt, completion.token_ids, temperature)
        assert completion.logprobs == pytest.approx(plain, abs=1e-3)
        assert len(completion.token_ids) == len(completion.versions) == 24


def test_greedy_takes_the_likeliest_with_the_logprob_of_temperature_one(
    engine: EmbeddedEngine,
) -> None:
    for prompt, completion in sample(engine, Sampling(24, temperature=0.0)):
        rows = logits(engine, prompt + completion.token_ids)[len(prompt) - 1 : -1]
        chosen = rows[torch.arange(24), torch.tensor(completion.token_ids)]
        assert (rows.amax(-1) - chosen).max() < 1e-3
        plain = plain_logprobs(engine, prompt, completion.token_ids)
        assert completion.logprobs == pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_k=3),
        Sampling(top_k=1),
        Sampling(top_p=0.6),
        Sampling(top_p=0.01),
        Sampling(min_p=0.2),
        Sampling(repetition_penalty=1.3),
        Sampling(repetition_penalty=0.8, temperature=0.0),
        Sampling(temperature=1.4, top_k=20, top_p=0.8, min_p=0.02, repetition_penalty=1.1),
    ],
    ids=lambda s: f"{s.temperature}-{s.top_p}-{s.top_k}-{s.min_p}-{s.repetition_penalty}",
)
def test_filtered_logprobs_are_those_of_a_naive_reference(
    engine: EmbeddedEngine, sampling: Sampling
) -> None:
    for prompt, completion in sample(engine, sampling.with_(max_tokens=12)):
        ids = prompt + completion.token_ids
        rows = logits(engine, ids).tolist()
        wrong = 0
        for place, logprob in enumerate(completion.logprobs, start=len(prompt)):
            allowed = naive_distribution(rows[place - 1], set(ids[:place]), sampling)
            expected = math.log(allowed.get(ids[place], 1e-30))
            wrong += abs(logprob - expected) > 1e-3
        assert wrong <= 1  # a token on the very edge of a filter may fall either way


@pytest.mark.parametrize("sampling", [Sampling(1), Sampling(1, 1.5, top_k=8), Sampling(1, 0.8)])
def test_first_tokens_come_as_often_as_their_probability(
    engine: EmbeddedEngine, sampling: Sampling
) -> None:
    draws, prompt = 250, PROMPTS[0]
    requests = [(prompt, sampling.with_(seed=seed)) for seed in range(draws)]
    counts = Counter(c.token_ids[0] for c in generate_all(engine, requests, NEVER))
    expected = naive_distribution(logits(engine, prompt)[-1].tolist(), set(), sampling)
    # The distance of a true sample: estimated from draws of the reference itself.
    rng = random.Random(0)
    tokens, weights = list(expected), list(expected.values())

    def distance(counted: Counter[int]) -> float:
        return sum(abs(counted[t] / draws - expected.get(t, 0.0)) for t in {*counted, *expected})

    usual = [distance(Counter(rng.choices(tokens, weights, k=draws))) for _ in range(100)]
    assert distance(counts) < 1.3 * max(usual)
    assert set(counts) <= set(expected)


def test_a_seed_gives_the_same_tokens_alone_and_in_company(engine: EmbeddedEngine) -> None:
    mine = (PROMPTS[1], Sampling(20, WILD, seed=5))
    company = [
        (PROMPTS[k % 6], Sampling(5 + 3 * k, temperature=0.5 + 0.1 * k, top_k=k, seed=100 + k))
        for k in range(12)
    ]
    (alone,) = generate_all(engine, [mine], NEVER)
    crowd = generate_all(engine, [*company[:6], mine, *company[6:]], NEVER)
    assert crowd[6].token_ids == alone.token_ids
    assert crowd[6].logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_other_seeds_give_other_tokens(engine: EmbeddedEngine) -> None:
    requests = [(PROMPTS[0], Sampling(16, WILD, seed=seed)) for seed in range(6)]
    drawn = generate_all(engine, requests, NEVER)
    assert len({tuple(completion.token_ids) for completion in drawn}) == 6


def test_without_a_seed_every_request_draws_again(engine: EmbeddedEngine) -> None:
    requests = [(PROMPTS[0], Sampling(16, WILD)) for _ in range(6)]
    drawn = generate_all(engine, requests, NEVER)
    assert len({tuple(completion.token_ids) for completion in drawn}) == 6


def test_max_tokens_ends_with_length(engine: EmbeddedEngine) -> None:
    (completion,) = generate_all(engine, [(PROMPTS[0], Sampling(7, seed=0))], NEVER)
    assert len(completion.token_ids) == 7
    assert completion.finish_reason == "length"


def test_a_stop_token_ends_the_answer_and_is_part_of_it(engine: EmbeddedEngine) -> None:
    request = (PROMPTS[0], Sampling(20, WILD, seed=0))
    (free,) = generate_all(engine, [request], NEVER)
    stop = free.token_ids[4]
    (stopped,) = generate_all(engine, [request], [stop])
    end = free.token_ids.index(stop) + 1
    assert stopped.token_ids == free.token_ids[:end]
    assert stopped.logprobs == pytest.approx(free.logprobs[:end], abs=1e-4)
    assert stopped.finish_reason == "stop"


def test_a_stop_token_in_the_last_place_is_a_stop(engine: EmbeddedEngine) -> None:
    (free,) = generate_all(engine, [(PROMPTS[0], Sampling(1, seed=0))], NEVER)
    (stopped,) = generate_all(engine, [(PROMPTS[0], Sampling(1, seed=0))], free.token_ids)
    assert stopped.finish_reason == "stop"


def test_more_requests_than_places_are_all_answered(engine: EmbeddedEngine) -> None:
    requests = [(PROMPTS[k % 6], Sampling(4 + k % 9, seed=k)) for k in range(40)]
    answers = generate_all(engine, requests, NEVER)
    assert [len(answer.token_ids) for answer in answers] == [4 + k % 9 for k in range(40)]


def test_contexts_as_long_as_allowed_fill_all_places_at_once() -> None:
    with running_engine(load_model(), max_seq_len=48, max_requests=4) as small:
        requests = [(PROMPTS[1][:16], Sampling(32, seed=k)) for k in range(6)]
        answers = generate_all(small, requests, NEVER)
        for answer in answers:
            plain = plain_logprobs(small, PROMPTS[1][:16], answer.token_ids)
            assert answer.logprobs == pytest.approx(plain, abs=1e-3)


def test_sampling_in_bfloat16_reports_float32_distributions() -> None:
    model = load_model().to(torch.bfloat16)
    with running_engine(model) as low:
        rows = sample(low, Sampling(16))
        for prompt, completion in rows:
            plain = plain_logprobs(low, prompt, completion.token_ids)
            assert completion.logprobs == pytest.approx(plain, abs=0.15)
            assert all(math.isfinite(logprob) for logprob in completion.logprobs)
