"""The engine's attention: what it computes for models of all kinds, and by which kernel."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.llama import LlamaConfig
from transformers.models.llama4 import Llama4TextConfig
from transformers.models.mamba import MambaConfig
from transformers.models.mistral import MistralConfig

from tests.inference.tiny_serving import generate_all, load_model, plain_logprobs, running_engine
from vf.inference.embedded import attention
from vf.inference.embedded.attention import Pass
from vf.inference.embedded.cache import KeyValueCache
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.spans import Group, Query
from vf.inference.model import Sampling
from vf.runtime.errors import EngineError

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
    Gemma2Config(
        **SHAPE,
        num_hidden_layers=2,
        num_key_value_heads=2,
        sliding_window=8,
        attn_logit_softcapping=2.0,
    ),
    GptOssConfig(
        **SHAPE,
        num_hidden_layers=2,
        num_key_value_heads=2,
        sliding_window=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
]
PROMPTS = [[1, *range(10, 10 + length)] for length in (2, 30, 0, 13, 45, 30)]


def build(config: PreTrainedConfig) -> Any:
    """Return a model with random weights, large enough for attention to matter."""
    torch.manual_seed(0)
    implementation = {"gemma2": "eager", "gpt_oss": "eager", "mamba": None}.get(
        config.model_type, "sdpa"
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize(
    "config", CONFIGS, ids=["all-heads", "one-key-head", "window", "mixed-windows", "caps", "sinks"]
)
def test_logprobs_are_those_of_a_plain_forward(config: PreTrainedConfig) -> None:
    # Few tokens a pass: long prompts are read in pieces, beside requests that sample already.
    with running_engine(build(config), max_seq_len=96, max_batch_tokens=24) as engine:
        requests = [(prompt, Sampling(20, seed=k)) for k, prompt in enumerate(PROMPTS)]
        answers = generate_all(engine, requests, [-1])
        later = [(p + a.token_ids, s) for (p, s), a in zip(requests, answers, strict=True)]
        answers += generate_all(engine, later, [-1])
        for (prompt, _), answer in zip(requests + later, answers, strict=True):
            plain = plain_logprobs(engine, prompt, answer.token_ids)
            assert answer.logprobs == pytest.approx(plain, abs=1e-4)


def test_what_a_request_samples_is_nobody_elses_business() -> None:
    """Its keys are next to those of others; none of theirs, nor of the padding, may be seen."""
    with running_engine(build(CONFIGS[0]), max_seq_len=96) as engine:
        for k, prompt in enumerate(PROMPTS):
            (alone,) = generate_all(engine, [(prompt, Sampling(20, seed=k))], [-1])
            others = [([2] * n, Sampling(20, seed=n)) for n in (1, 17, 60)]
            answers = generate_all(engine, [*others, (prompt, Sampling(20, seed=k))], [-1])
            assert answers[-1].token_ids == alone.token_ids
            assert answers[-1].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_a_prompt_alone_may_be_longer_than_a_pass() -> None:
    prompt = [*range(1, 60)]
    with running_engine(build(CONFIGS[0]), max_seq_len=96, max_batch_tokens=16) as engine:
        [answer] = generate_all(engine, [(prompt, Sampling(4, seed=0))], [-1])
        plain = plain_logprobs(engine, prompt, answer.token_ids)
    assert answer.logprobs == pytest.approx(plain, abs=1e-4)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("shared", [0, 3, 20])
@pytest.mark.parametrize("seed", range(4))
def test_every_query_sees_its_own_past_and_nothing_else(
    seed: int, shared: int, window: int | None
) -> None:
    """Against a loop over requests and heads, in a cache whose other tokens are all wrong."""
    rng, heads, key_heads, width, slot = random.Random(seed), 6, 3, 4, 64
    generator = torch.Generator().manual_seed(seed)
    queries = []
    for row in rng.sample(range(32), 12):  # some in the second halves of their slots
        past, count = rng.choice([0, 3, 20]), rng.choice([1, 1, 1, 4, 7])
        begin = shared if count == 1 and shared <= past and rng.random() < 0.8 else 0
        queries.append(Query(slot * row + rng.choice([0, 32]), past, count, begin))
    queries.sort(key=lambda q: (q.count > 1, q.shared == 0, q.start % slot, q.start))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    total = sum(q.count for q in queries)
    query, key = draw(total, heads, width), draw(total, key_heads, width)
    value = draw(total, key_heads, width)
    cache = KeyValueCache(32, slot)
    everywhere = cache.rows(torch.arange(32 * slot), key_heads)
    keys, values = cache.write(0, everywhere, *draw(2, 32 * slot, key_heads, width).unbind())
    sharing = [q.start for q in queries if q.shared]
    for start in sharing[1:]:
        cache.copy(sharing[0], start, shared)
    found = Pass(cache, queries, torch.device("cpu")).attend(0, query, key, value, 0.5, window)
    first = 0
    for each in queries:
        row, begin = divmod(each.start, slot)
        for step in range(each.count):
            last = each.past + step + 1
            seen = slice(begin + max(0, last - (window or last)), begin + last)
            for head in range(heads):
                k, v = (x[row, head // 2, seen] for x in (keys, values))
                expected = (0.5 * k @ query[first + step, head]).softmax(0) @ v
                assert torch.allclose(found[first + step, head], expected, atol=1e-5)
        first += each.count


def test_what_requests_share_is_read_from_the_first_of_them() -> None:
    """The copies of the others are made wrong: only one of them may matter."""
    cache, heads, width = KeyValueCache(4, 16), 2, 8
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 2 * heads, width).unbind()
    cache.write(0, cache.rows(torch.arange(64), heads), *torch.randn(2, 64, heads, width).unbind())
    queries = [Query(16 * row, 6, 1, 5) for row in range(4)]

    def attend() -> torch.Tensor:
        found = Pass(cache, queries, torch.device("cpu"))
        return found.attend(0, query, key[:, :heads], value[:, :heads], 1.0, None)

    for row in range(1, 4):
        cache.copy(0, 16 * row, 5)
    right = attend()
    for row in range(1, 4):
        cache.copy(7, 16 * row, 5)
    assert torch.equal(attend(), right)


def resident() -> int:
    """Return this process's memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_short_contexts_take_little_memory_in_a_large_cache() -> None:
    """One token in each of 32 slots of 4 MB: in pages of 2 MB they would take 128 MB."""
    slots, size, heads, width = 32, 4096, 4, 64
    cache = KeyValueCache(slots, size)
    before = resident()
    new = torch.zeros(slots, heads, width)
    cache.write(0, cache.rows(torch.arange(slots) * size, heads), new, new)
    assert resident() - before < 50e6


def test_distant_or_unlike_contexts_are_not_read_together() -> None:
    def group(*places: tuple[int, int], shared: int = 0) -> Group:
        queries = [Query(start, past, 1, shared) for start, past in places]
        return Group.of(queries, 100, 60, torch.device("cpu"), shared=shared)

    near = ((0, 50), (100, 50), (300, 50))
    together = group(*near)
    assert [span.lengths for span in together.spans] == [[51, 51, 1, 51]]
    assert together.rows is not None
    assert together.rows.tolist() == [0, 1, 3]
    far = group(*near, (5000, 50), (6050, 50), (6000, 50))
    assert [len(span.lengths) for span in far.spans] == [4, 1, 1, 1]
    assert far.rows is not None
    assert far.rows.tolist() == [0, 1, 3, 4, 5, 6]
    unlike = group((0, 2), (100, 2), (200, 80))
    assert [span.width for span in unlike.spans] == [3, 81]
    assert unlike.rows is None
    rest = group(*near, shared=50)
    assert [(span.start, span.lengths) for span in rest.spans] == [(50, [1, 1, 1, 1])]


@contextmanager
def watched_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Yield what torch's attention is asked for, call by call."""
    asked: list[dict[str, Any]] = []

    def note(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
        asked.append({"q": query, "k": key, **options})
        return functional.scaled_dot_product_attention(query, key, value, **options)

    with monkeypatch.context() as patch:
        patch.setattr(attention, "scaled_dot_product_attention", note)
        yield asked


def test_a_prompt_that_many_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [([*range(60), token], Sampling(8, seed=token)) for token in range(2, 40)]
    with (
        watched_kernel(monkeypatch) as asked,
        running_engine(build(CONFIGS[1]), max_seq_len=96, max_requests=38) as engine,
    ):
        answers = generate_all(engine, requests, [-1])
        for (prompt, _), answer in zip(requests, answers, strict=True):
            plain = plain_logprobs(engine, prompt, answer.token_ids)
            assert answer.logprobs == pytest.approx(plain, abs=1e-4)
    assert max(call["q"].shape[0] for call in asked) <= 2  # passes of all are not among them


def test_no_call_needs_the_slow_kernel_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, flash takes no mask, and the memory-efficient kernel no grouped heads.

    A mask must come with as many heads of keys as of queries (sdp_utils.cpp, check_batch_size and
    check_grouped_query_attention), of the query's dtype, and all must be dense in the last place.
    """
    with (
        watched_kernel(monkeypatch) as asked,
        running_engine(build(CONFIGS[1]), max_seq_len=96, max_batch_tokens=24) as engine,
    ):
        generate_all(engine, [(p, Sampling(8, seed=k)) for k, p in enumerate(PROMPTS)], [-1])
    assert {call["attn_mask"] is None for call in asked} == {True, False}
    for call in asked:
        assert not call.get("enable_gqa")
        assert call["q"].shape[:2] == call["k"].shape[:2]
        assert call["q"].stride(-1) == call["k"].stride(-1) == 1
        if (mask := call["attn_mask"]) is not None:
            assert mask.dtype == call["q"].dtype
            assert not call.get("is_causal")


def test_the_module_attends_as_it_was_loaded_whenever_generation_is_paused() -> None:
    model = load_model()
    seen: list[tuple[bool, str]] = []
    layer = model.model.layers[0].self_attn

    def note(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        seen.append(("vf_pass" in kwargs, layer.config._attn_implementation))

    layer.register_forward_pre_hook(note, with_kwargs=True)
    with running_engine(model) as engine:
        answers = generate_all(engine, [(PROMPTS[1], Sampling(4, seed=0))], [-1])
        plain_logprobs(engine, PROMPTS[1], answers[0].token_ids)
    assert {*seen} == {(True, "vf_cached"), (False, "sdpa")}
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            Llama4TextConfig(
                **SHAPE,
                intermediate_size_mlp=48,
                num_hidden_layers=2,
                num_key_value_heads=2,
                num_local_experts=2,
                attention_chunk_size=8,
            ),
            "the model attends in chunks",
        ),
        (MambaConfig(hidden_size=32, vocab_size=64, num_hidden_layers=2), "differ|unexpected"),
    ],
    ids=["chunks", "state-space"],
)
def test_a_model_that_would_be_sampled_wrongly_is_refused(
    config: PreTrainedConfig, reason: str
) -> None:
    engine = EmbeddedEngine(build(config), max_seq_len=96)
    with pytest.raises(EngineError, match=f"cannot be served by the embedded engine: .*({reason})"):
        engine.start()


@pytest.mark.parametrize(("requests", "length"), [(1000, 10**10), (10**12, 512)])
def test_a_cache_that_cannot_be_made_is_an_error_of_the_engine(requests: int, length: int) -> None:
    engine = EmbeddedEngine(load_model(), max_seq_len=length, max_requests=requests)
    with pytest.raises(EngineError, match="cannot make its cache"):
        engine.start()
    engine.stop()
