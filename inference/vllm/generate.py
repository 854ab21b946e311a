"""vLLM's tokens-in, tokens-out API, which also tells the weight version of every token."""

from __future__ import annotations

from typing import Any

from vf.inference.completions import Completion, checked, sampling_fields
from vf.inference.model import Sampling
from vf.inference.serving import Served
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError


async def generate_wire(
    client: JsonClient,
    served: Served,
    prompt_ids: list[int],
    sampling: Sampling,
    stop_token_ids: list[int],
) -> Completion:
    """Ask ``/inference/v1/generate``.

    The client's base URL is the server's root. Where weights are swapped under running requests,
    one completion may have tokens of several versions, which ``/v1/completions`` does not tell
    apart.

    Raises:
        ModelError: The server failed, or its answer lacks ids, logprobs or versions.
    """
    body: dict[str, Any] = {
        "model": served.model,
        "token_ids": prompt_ids,
        "sampling_params": {
            "logprobs": 0,
            "detokenize": False,
            **sampling_fields(sampling, stop_token_ids),
        },
    }
    answer = await client.post("/inference/v1/generate", body)
    try:
        choice = answer["choices"][0]
        ids = list(choice["token_ids"])
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        versions = [
            int(span["version"])
            for span in choice["weight_versions"]
            for _ in range(span["start"], span["end"])
        ]
        reason = choice["finish_reason"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(
            f"{client.base_url} does not tell ids, logprobs and weight versions as vLLM 0.32 does "
            f"(missing: {error})"
        ) from error
    return checked(ids, logprobs, versions, reason)
