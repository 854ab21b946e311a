"""Sampling from a server of the Tinker API, through its SDK."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from vf.inference.completions import Completion, checked
from vf.inference.model import Sampling
from vf.inference.serving import Served
from vf.inference.wire import JsonClient, refusal
from vf.runtime.api_keys import hide_urls
from vf.runtime.errors import ModelError
from vf.runtime.extras import load

SAMPLERS = 8  # whose connections are kept; each publish makes a new one


def load_sdk() -> Any:
    """Return the SDK, the package ``tinker``. Its telemetry is off unless the user turned it on.

    Raises:
        ConfigError: If the SDK is not installed.
    """
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    return load("tinker", "tinker")


@lru_cache(SAMPLERS)
def _sampler(handle: str, api_key: str | None) -> Any:
    return load_sdk().SamplingClient.from_sampler_handle(handle, api_key=api_key)


async def tinker_wire(
    client: JsonClient,
    served: Served,
    prompt_ids: list[int],
    sampling: Sampling,
    stop_token_ids: list[int],
) -> Completion:
    """Ask a sampler, whose handle is the served model's name.

    The SDK itself waits for a server that is away or answers 429.

    Raises:
        ModelError: If the server failed or refused, or cannot sample in this way.
    """
    if sampling.min_p or sampling.repetition_penalty != 1.0:
        raise ModelError("the Tinker API has no min_p and no repetition_penalty; leave them out")
    tinker = load_sdk()
    params = tinker.SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or -1,
        seed=sampling.seed,
        stop=stop_token_ids,
    )
    prompt = tinker.ModelInput.from_ints(prompt_ids)
    server = hide_urls(client.base_url)
    try:
        response = await _sampler(served.model, client.api_key).sample(prompt, 1, params)
    except tinker.APIStatusError as error:
        raise refusal(f"{server}: {error.message}", error.status_code) from error
    except (tinker.TinkerError, ValueError) as error:  # what a request ended with
        raise ModelError(f"{server}: {error}") from error
    [sequence] = response.sequences
    ids, logprobs = list(sequence.tokens), list(sequence.logprobs or [])
    return checked(ids, logprobs, [served.version] * len(ids), sequence.stop_reason)
