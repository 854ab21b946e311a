"""What vLLM's filters left, as both of its APIs tell it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from vf.inference.completions import Completion, Wire, generate_wire, vllm_wire
from vf.inference.model import Sampling
from vf.inference.serving import Served
from vf.inference.supports import TIES
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError
from vf.testing import FakeServer, Response

# Of two sampled tokens: the log-probabilities of the likeliest, and of those filtered out.
TOLD = [{7: math.log(0.75), 3: math.log(0.25), 9: -9999.0}, {5: 0.0, 2: -9999.0}]
TRAINED = Sampling(max_tokens=2, top_p=0.9, top_k=3, trained=True)


def completions(told: list[dict[int, float]]) -> dict[str, Any]:
    shown = [{f"token_id:{token}": value for token, value in each.items()} for each in told]
    own = [next(iter(each.values())) for each in told]
    logprobs = {"token_logprobs": own, "top_logprobs": shown}
    return {"token_ids": [next(iter(each)) for each in told], "logprobs": logprobs}


def generated(told: list[dict[int, float]]) -> dict[str, Any]:
    content = []
    for each in told:
        likeliest = [{"token_id": token, "logprob": value} for token, value in each.items()]
        content.append({**likeliest[0], "top_logprobs": likeliest})
    versions = [{"version": "0", "start": 0, "end": len(told)}]
    ids = [next(iter(each)) for each in told]
    return {"token_ids": ids, "logprobs": {"content": content}, "weight_versions": versions}


BOTH = pytest.mark.parametrize(
    ("wire", "write"), [(vllm_wire, completions), (generate_wire, generated)]
)


def ask(
    wire: Wire, choice: dict[str, Any], sampling: Sampling = TRAINED
) -> tuple[Completion, dict[str, Any]]:
    async def run() -> tuple[Completion, dict[str, Any]]:
        answer = {"choices": [{"index": 0, "finish_reason": "length", **choice}]}
        async with FakeServer(Response(answer)) as server:
            client = JsonClient(server.base_url.removesuffix("/v1"), max_retries=0)
            if wire is vllm_wire:
                client = JsonClient(server.base_url, max_retries=0)
            try:
                found = await wire(client, Served("m", version=0), [1, 2], sampling, [0])
            finally:
                await client.close()
        body = server.bodies[0]
        return found, body.get("sampling_params", body)

    return asyncio.run(run())


@BOTH
def test_what_is_not_impossible_is_the_support(wire: Wire, write: Any) -> None:
    found, body = ask(wire, write(TOLD))
    assert found.supports == [[3, 7], [5]]
    assert found.logprobs == [math.log(0.75), 0.0]
    assert body["logprobs"] == 3 + TIES


@BOTH
@pytest.mark.parametrize(
    "changes", [{"trained": False}, {"top_k": 0}, {"temperature": 0.0}], ids=str
)
def test_only_what_top_k_bounds_and_is_trained_is_asked_for(
    wire: Wire, write: Any, changes: dict[str, Any]
) -> None:
    found, body = ask(wire, write(TOLD), TRAINED.with_(**changes))
    assert found.supports == []
    assert body["logprobs"] == 0


@BOTH
def test_the_models_own_logprobs_are_refused(wire: Wire, write: Any) -> None:
    with pytest.raises(ModelError, match=r"together a probability of 0\.900.*processed_logprobs"):
        ask(wire, write([{7: math.log(0.6), 3: math.log(0.3)}]))
