"""Several adapters in one pass of the engine, against the module with each merged into it."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch

from tests.inference.tiny_serving import load_model, running_engine
from vf.inference.completions import Completion
from vf.inference.embedded.contexts import Contexts
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.lora_mixture import RUNS, Lora, LoraMixture, Part, parts_of
from vf.inference.model import Sampling

PROMPT = [5, 9, 17, 33, 65, 129, 257, 6, 10, 18, 7, 11]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model()


def adapter(model: Any, rank: int, seed: int, names: str = "") -> Lora:
    """Return an adapter of random matrices for the linear layers whose names contain a text."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and names in name:
            a = torch.randn(rank, layer.in_features, generator=generator) * 0.1
            weights[name] = (a, torch.randn(layer.out_features, rank, generator=generator) * 0.1)
    return Lora(weights, scale=0.5)


def merged(model: Any, lora: Lora | None) -> Any:
    """Return a copy of the model with an adapter's product in its weights."""
    whole = copy.deepcopy(model)
    head = whole.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())  # no longer the embedding's
    with torch.no_grad():
        for name, (a, b) in (lora.weights if lora is not None else {}).items():
            whole.get_submodule(name).weight += lora.scale * (b @ a)  # type: ignore[union-attr]
    return whole


def logprobs(module: Any, completion: Completion) -> list[float]:
    ids = torch.tensor([PROMPT + completion.token_ids])
    with torch.no_grad():
        values = module(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    chosen: list[float] = values.gather(1, torch.tensor(completion.token_ids)[:, None])[
        :, 0
    ].tolist()
    return chosen


def sample(engine: EmbeddedEngine, loras: list[Lora | None]) -> list[Completion]:
    async def every() -> list[Completion]:
        samplings = [Sampling(max_tokens=8 + 2 * n, seed=n) for n in range(len(loras))]
        runs = [
            engine.generate(PROMPT, sampling, [], lora)
            for sampling, lora in zip(samplings, loras, strict=True)
        ]
        return list(await asyncio.gather(*runs))

    return asyncio.run(every())


@pytest.mark.parametrize("times", [1, 4], ids=["few", "more than the ranges of an adapter"])
def test_each_request_is_computed_with_its_own_adapter(model: Any, times: int) -> None:
    loras = [
        None,
        adapter(model, 1, 1),
        adapter(model, 6, 2, "self_attn"),
        adapter(model, 4, 3, "lm_head"),
    ]
    with running_engine(model, max_batch_tokens=24) as engine:
        together = sample(engine, loras * times)
        again = sample(engine, loras)  # beside contexts that the others have left
    for completion, lora in zip(together + again, loras * (times + 1), strict=True):
        expected = logprobs(merged(model, lora), completion)
        assert completion.logprobs == pytest.approx(expected, abs=2e-4)


def test_the_model_is_left_as_it_was(model: Any) -> None:
    ids = torch.tensor([PROMPT])
    mixture = LoraMixture(model)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        with mixture.using([Part(adapter(model, 3, 1))]):
            changed = model(input_ids=ids).logits
        after = model(input_ids=ids).logits
    assert not torch.allclose(before, changed)
    assert torch.equal(before, after)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_pass_of_one_adapter_needs_no_rows() -> None:
    one, cpu = Lora({}, 1.0), torch.device("cpu")
    assert parts_of([(None, 3, True)], cpu) == []
    [part] = parts_of([(one, 3, True), (one, 1, False)], cpu)
    assert (part.lora, part.rows, part.ready) == (one, None, None)


@pytest.mark.parametrize("times", [1, 3, 4])
def test_parts_are_the_rows_of_each_adapter(times: int) -> None:
    """In ranges while these are few, and by their indices where requests of adapters alternate."""
    one, other = Lora({}, 1.0), Lora({}, 1.0)
    pattern = [(one, 2, True), (one, 1, True), (None, 1, True), (other, 2, False)]
    parts = parts_of(pattern * times, torch.device("cpu"))
    assert len(parts) == (2 * times if times <= RUNS else 2)
    rows, ready = torch.arange(6 * times), torch.arange(3 * times)
    for lora, own, logits in ((one, [0, 1, 2], [0, 1]), (other, [4, 5], [])):
        mine = [part for part in parts if part.lora is lora]
        found = torch.cat([rows[part.rows] for part in mine])
        assert found.tolist() == [6 * time + row for time in range(times) for row in own]
        found = torch.cat([ready[part.ready] for part in mine])
        assert found.tolist() == [3 * time + row for time in range(times) for row in logits]


def test_contexts_are_shared_by_requests_of_one_adapter_only() -> None:
    contexts = Contexts(4, 64)
    for owner in (0, 7):
        context = contexts.open([1, 2, 3], None, 0, owner)
        context.ids += [1, 2, 3]
        contexts.close(context)
    assert contexts.match([1, 2, 3], 8) == (None, 0)
    for owner in (0, 7):
        match, length = contexts.match([1, 2, 3, 4], owner)
        assert match is not None
        assert (match.owner, length) == (owner, 3)
