"""The engine's attention: what it computes for models of all kinds, and how it divides the work."""

from __future__ import annotations

import copy
import random
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig

from tests.inference.tiny_serving import generate_all, load_model, plain_logprobs, running_engine
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.paged_attention import PagedModel, divide, selected, serves
from vf.inference.model import Sampling
from vf.runtime.errors import EngineError

pytestmark = pytest.mark.slow

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "vocab_size": 64,
    "head_dim": 8,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
CONFIGS: list[PreTrainedConfig] = [
    LlamaConfig(**SHAPE, num_hidden_layers=2, num_key_value_heads=4),
    LlamaConfig(**SHAPE, num_hidden_layers=2, num_key_value_heads=1),
    MistralConfig(**SHAPE, num_hidden_layers=2, num_key_value_heads=2, sliding_window=8),
    Gemma3TextConfig(
        **SHAPE,
        num_hidden_layers=4,
        num_key_value_heads=2,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
]
PROMPTS = [[1, *range(10, 10 + length)] for length in (2, 30, 0, 13, 45, 30)]


def build(config: PreTrainedConfig) -> Any:
    """Return a model with random weights, large enough for attention to matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize(
    ("config", "ours"),
    [*((config, True) for config in CONFIGS), (CONFIGS[-1], False)],
    ids=["all-heads", "one-key-head", "window", "mixed", "the-models-own"],
)
def test_logprobs_are_those_of_a_plain_forward(config: PreTrainedConfig, ours: bool) -> None:
    model = build(config)
    if not ours:
        # The selection would not reach a layer with a config of its own.
        layer = model.get_decoder().layers[1].self_attn
        layer.config = copy.deepcopy(layer.config)
    assert serves(model) == ours
    # Few tokens a pass: long prompts are read in pieces, beside requests that sample already.
    with running_engine(model, max_seq_len=96, max_batch_tokens=24) as engine:
        requests = [(prompt, Sampling(20, seed=k)) for k, prompt in enumerate(PROMPTS)]
        answers = generate_all(engine, requests, [-1])
        later = [(p + a.token_ids, s) for (p, s), a in zip(requests, answers, strict=True)]
        answers += generate_all(engine, later, [-1])
        for (prompt, _), answer in zip(requests + later, answers, strict=True):
            plain = plain_logprobs(engine, prompt, answer.token_ids)
            assert answer.logprobs == pytest.approx(plain, abs=1e-4)


def test_what_a_request_samples_is_nobody_elses_business() -> None:
    """Its keys are next to those of others; none of theirs, nor of the padding, may be seen."""
    model = build(CONFIGS[0])
    with running_engine(model, max_seq_len=96) as engine:
        for k, prompt in enumerate(PROMPTS):
            (alone,) = generate_all(engine, [(prompt, Sampling(20, seed=k))], [-1])
            others = [([2] * n, Sampling(20, seed=n)) for n in (1, 5, 17, 40, 60)]
            answers = generate_all(engine, [*others, (prompt, Sampling(20, seed=k))], [-1])
            assert answers[-1].token_ids == alone.token_ids
            assert answers[-1].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_the_module_attends_as_it_was_loaded_between_the_engines_passes() -> None:
    model = load_model()
    seen: list[tuple[bool, str]] = []
    layer = model.model.layers[0].self_attn

    def note(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        seen.append(("cache" in kwargs, layer.config._attn_implementation))

    layer.register_forward_pre_hook(note, with_kwargs=True)
    with running_engine(model) as engine:
        answers = generate_all(engine, [(PROMPTS[1], Sampling(4, seed=0))], [-1])
        plain_logprobs(engine, PROMPTS[1], answers[0].token_ids)
    assert {*seen} == {(True, "vf_paged"), (False, "sdpa")}


def test_an_error_leaves_the_modules_attention_as_it_was() -> None:
    model = build(CONFIGS[0])
    PagedModel(model)
    with pytest.raises(TypeError), selected(model):
        model(torch.tensor([[1, 2]]), use_cache=False)  # without what continuous batching passes
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("seed", range(8))
def test_division_shows_every_query_its_own_past_and_nothing_else(
    seed: int, window: int | None
) -> None:
    rng = random.Random(seed)
    queries = [rng.choice([1, 1, 1, 2, 5, 9]) for _ in range(rng.randint(1, 20))]
    keys = [count + rng.choice([0, 0, 1, 5, 40]) for count in queries]
    ends_q, ends_k = [0, *accumulate(queries)], [0, *accumulate(keys)]
    parts, order = divide(ends_q, ends_k, window, torch.device("cpu"))
    seen: dict[int, list[int]] = {}
    for part in parts:
        rows = part.rows.view(part.requests, -1)
        places = order[part.keys].view(part.requests, -1)
        for request in range(part.requests):
            for step, row in enumerate(rows[request].tolist()):
                shown = places[request].tolist()
                if part.mask is None:
                    visible = shown[: step + 1]
                else:
                    mask = part.mask[request, 0, step].tolist()
                    visible = [place for place, see in zip(shown, mask, strict=True) if see]
                assert row not in seen, "every query is in one part"
                seen[row] = visible
    expected = {
        first_q + step: list(range(first_k, end_k))[
            : end_k - first_k - (end_q - first_q) + step + 1
        ]
        for (first_q, end_q), (first_k, end_k) in zip(
            pairwise(ends_q), pairwise(ends_k), strict=True
        )
        for step in range(end_q - first_q)
    }
    if window:
        expected = {row: past[-window:] for row, past in expected.items()}
    assert seen == expected
    assert len(order) < 2 * sum(keys), "less than half is padding"


def test_a_cache_that_cannot_be_made_is_an_error_of_the_engine() -> None:
    engine = EmbeddedEngine(build(CONFIGS[0]), max_seq_len=96, max_requests=10**11)
    with pytest.raises(EngineError, match="cannot make its cache"):
        engine.start()
    engine.stop()
