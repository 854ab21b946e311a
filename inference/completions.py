"""Sampling over HTTP: token ids in, token ids and logprobs out."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from vf.inference.model import NEUTRAL, Sampling
from vf.inference.patience import AWAY_SECONDS, Patience
from vf.inference.serving import Served, Serving
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError, ServerDown


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled; the lists have one length.

    Attributes:
        token_ids: The sampled ids, the stop token included.
        logprobs: Natural-log probability of each, as sampled.
        versions: Version of the weights behind each.
        finish_reason: None while more is to come.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: Literal["stop", "length"] | None


class TokenSampler(Protocol):
    """Anything that continues token ids."""

    async def complete(
        self, prompt_ids: list[int], sampling: Sampling, stop_token_ids: list[int]
    ) -> Completion:
        """Sample one completion.

        Raises:
            ModelError: The server failed, or its answer is incomplete.
        """
        ...


# How to ask one kind of server for one completion.
Wire = Callable[[JsonClient, Served, list[int], Sampling, list[int]], Awaitable[Completion]]


async def openai_wire(
    client: JsonClient,
    served: Served,
    prompt_ids: list[int],
    sampling: Sampling,
    stop_token_ids: list[int],
) -> Completion:
    """Ask OpenAI's ``/completions``, as vLLM and the embedded engine extend it.

    Raises:
        ModelError: The server failed, or its answer lacks ids or logprobs.
    """
    body: dict[str, Any] = {
        "model": served.model,
        "prompt": prompt_ids,
        "logprobs": 0,
        "return_token_ids": True,
        **sampling_fields(sampling, stop_token_ids),
    }
    answer = await client.send("/completions", body)
    try:
        choice = answer["choices"][0]
        ids = list(choice["token_ids"])
        logprobs = list(choice["logprobs"]["token_logprobs"])
        versions = choice.get("weight_versions") or [served.version] * len(ids)
        reason = choice["finish_reason"]
    except (KeyError, IndexError, TypeError) as error:
        raise ModelError(
            "the server's completion lacks token ids or logprobs; it must understand "
            f"`return_token_ids` and `logprobs` (missing: {error})"
        ) from error
    return checked(ids, logprobs, versions, reason)


class TokenClient:
    """Samples from a server, as patiently as :class:`~vf.inference.patience.Patience` has it.

    Args:
        client: The server. Its timeout is of seconds without progress; its retries are of errors
            that are not known to pass.
        model: The model's name on it, or what the engine says that it serves now.
        wire: How to ask.
        away: Seconds for which a server that is away is waited for.
    """

    def __init__(
        self,
        client: JsonClient,
        model: str | Serving,
        wire: Wire = openai_wire,
        *,
        away: float = AWAY_SECONDS,
    ) -> None:
        self._client = client
        self._serving = Serving(model) if isinstance(model, str) else model
        self._wire = wire
        self._patience = Patience(
            client.base_url,
            timeout=client.timeout,
            max_retries=client.max_retries,
            backoff=client.backoff,
            away=away,
            count=lambda: processed_tokens(client),
            still=self._serving.is_still,
        )

    async def complete(
        self, prompt_ids: list[int], sampling: Sampling, stop_token_ids: list[int]
    ) -> Completion:
        """Sample one completion.

        Raises:
            ModelError: The server failed, or its answer is incomplete.
            ServerDown: It went down, and may be started again.
        """
        return await self._patience.ask(
            lambda: self._attempt(prompt_ids, sampling, stop_token_ids), sampling.max_tokens
        )

    async def _attempt(
        self, prompt_ids: list[int], sampling: Sampling, stop_token_ids: list[int]
    ) -> Completion:
        async with self._serving.request() as served:
            try:
                completion = await self._wire(
                    self._client, served, prompt_ids, sampling, stop_token_ids
                )
            except ModelError as error:
                if self._serving.lost(served):
                    raise ServerDown(f"the inference server went down: {error}") from error
                raise
            if self._serving.lost(served):
                # A new server may have answered, with other weights than the lease says.
                raise ServerDown("the inference server went down during the request")
            return completion

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


_TOKENS = re.compile(r"^\w+:(?:generation|prompt)_tokens_total(?:\{.*\})? (\S+)$", re.MULTILINE)


async def processed_tokens(client: JsonClient) -> float | None:
    """Return how many tokens a server says that it has read and sampled, in all requests.

    Returns:
        The sum of its counters at ``/metrics``, as vLLM, SGLang and the embedded engine have them;
        None if there are none.
    """
    counts = [float(count) for count in _TOKENS.findall(await client.text("/metrics") or "")]
    return sum(counts) if counts else None


def sampling_fields(sampling: Sampling, stop_token_ids: list[int]) -> dict[str, Any]:
    """Return the sampling parameters that are not neutral, by the names that vLLM has for them."""
    seed = {} if sampling.seed is None else {"seed": sampling.seed}
    fields = {name: getattr(sampling, name) for name in NEUTRAL}
    # The text is read from the ids, which must hold whatever ended the answer.
    stop = {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": stop_token_ids,
        **seed,
        **(stop if sampling.stop else {}),
        **({"structured_outputs": sampling.structure} if sampling.structure else {}),
        **{name: value for name, value in fields.items() if value != NEUTRAL[name]},
    }


def checked(ids: list[int], logprobs: list[Any], versions: list[int], reason: Any) -> Completion:
    """Return the completion, if it is whole.

    Raises:
        ModelError: It is empty, its lists differ in length, a logprob is missing or not finite,
            or it ended in no known way.
    """
    lengths = len(ids), len(logprobs), len(versions)
    if not ids or len({*lengths}) != 1:
        raise ModelError(
            "the server sent {} token ids, {} logprobs and {} weight versions".format(*lengths)
        )
    try:
        finite = all(map(math.isfinite, logprobs))
    except TypeError as error:
        raise ModelError("the server sent no logprob for some of the sampled tokens") from error
    if not finite:
        raise ModelError("the server sent a logprob that is not finite")
    if reason not in ("stop", "length"):
        raise ModelError(f"the server ended the completion with {reason!r}")
    return Completion(ids, logprobs, versions, reason)


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
            "detokenize": bool(sampling.stop),
            **sampling_fields(sampling, stop_token_ids),
        },
    }
    answer = await client.send("/inference/v1/generate", body)
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
