"""Sampling over HTTP: token ids in, token ids and logprobs out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from vf.inference.experts import requested_experts
from vf.inference.model import NEUTRAL, Sampling
from vf.inference.serving import Served
from vf.inference.supports import logprobs_to_ask, read_supports
from vf.inference.wire import JsonClient, Unavailable
from vf.runtime.api_keys import hide_urls
from vf.runtime.errors import ModelError
from vf.traces.images import Image
from vf.traces.packed import unpack_supports


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled; the lists have one length, except the experts. Supports may be empty.

    Attributes:
        token_ids: The sampled ids, the stop token included.
        logprobs: Natural-log probability of each, as sampled.
        versions: Version of the weights behind each.
        finish_reason: None while more is to come.
        experts: If asked for, those of the prompt's tokens from ``experts_from`` on, and of the
            sampled ones but the last, which no pass has read; see :mod:`vf.inference.experts`.
        supports: Which tokens filters left to sample each from; see
            :attr:`vf.traces.trace.Branch.supports`.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: Literal["stop", "length"] | None
    experts: tuple[bytes, ...] = ()
    supports: list[list[int]] = field(default_factory=list)


class TokenSampler(Protocol):
    """Anything that continues token ids."""

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        """Sample one completion.

        Args:
            prompt_ids: The tokens that it continues.
            sampling: The sampling settings.
            stop_token_ids: The tokens that end it.
            conversation: Key of the conversation that it is a turn of, which is best answered where
                its beginning was.

        Raises:
            ModelError: If the server failed, or its answer is incomplete.
        """
        ...


class ImageProcessor(Protocol):
    """Prepares images for servers that process them themselves, as a model's own processor does."""

    def as_sent(
        self, token_ids: Sequence[int], images: Sequence[Image]
    ) -> tuple[list[int], list[dict[str, str]]]:
        """Return a prompt with one placeholder for each image, and the images' addresses.

        Raises:
            ContextFull: If the model has sampled a placeholder before an image.
        """
        ...

    def test_prompt(self) -> tuple[list[int], list[Image]]:
        """Return the tokens of a test picture, and it with its place in them."""
        ...


# What a server could have other defaults for, such as those of the model's generation_config.json.
_NEUTRAL = {**NEUTRAL, "presence_penalty": 0, "frequency_penalty": 0}


def every_field(sampling: Sampling, stop_token_ids: list[int]) -> dict[str, Any]:
    """Return all sampling parameters, so that no default of the server's is used."""
    return {**_NEUTRAL, **sampling_fields(sampling, stop_token_ids)}


def salted(served: Served) -> dict[str, str]:
    """Return the field that keeps contexts of other weights out of a request, where it is used."""
    return {"cache_salt": served.cache_salt} if served.cache_salt else {}


# How to ask one kind of server for one completion.
Wire = Callable[[JsonClient, Served, list[int], Sampling, list[int]], Awaitable[Completion]]


async def openai_wire(
    client: JsonClient,
    served: Served,
    prompt_ids: list[int],
    sampling: Sampling,
    stop_token_ids: list[int],
    likeliest: int = 0,
) -> Completion:
    """Ask OpenAI's ``/completions``, as vLLM and the embedded engine extend it.

    With ``likeliest``, log-probabilities of so many tokens tell the supports (vLLM); otherwise the
    answer may hold them (the embedded engine).

    Raises:
        ModelError: If the server failed, its answer lacks ids or logprobs, or there are images.
    """
    if sampling.images:
        raise ModelError("images are not sent to servers that speak OpenAI's API in tokens")
    body: dict[str, Any] = {
        "model": served.model,
        "prompt": prompt_ids,
        "logprobs": likeliest,
        "return_token_ids": True,
        **({"return_tokens_as_token_ids": True} if likeliest else {}),
        **salted(served),
        **every_field(sampling, stop_token_ids),
    }
    answer = await client.send("/completions", body)
    try:
        choice = answer["choices"][0]
        ids = list(choice["token_ids"])
        logprobs = list(choice["logprobs"]["token_logprobs"])
        versions = choice.get("weight_versions") or [served.version] * len(ids)
        reason = choice["finish_reason"]
        experts = choice.get("routed_experts")
        if likeliest:
            supports = read_supports(
                {int(token.removeprefix("token_id:")): value for token, value in top.items()}
                for top in choice["logprobs"]["top_logprobs"]
            )
        else:
            supports = unpack_supports(choice.get("supports", []))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(
            "the server's completion lacks token ids or logprobs; it must understand "
            f"`return_token_ids` and `logprobs` (missing: {error})"
        ) from error
    rows = requested_experts(experts, sampling.experts_from, len(prompt_ids), len(ids))
    return checked(ids, logprobs, versions, reason, rows, supports)


async def vllm_wire(
    client: JsonClient,
    served: Served,
    prompt_ids: list[int],
    sampling: Sampling,
    stop_token_ids: list[int],
) -> Completion:
    """Ask ``/completions`` of vLLM, which tells what filters left by its log-probabilities.

    Raises:
        ModelError: If the server failed, or its answer lacks ids or logprobs.
    """
    likeliest = logprobs_to_ask(sampling)
    return await openai_wire(client, served, prompt_ids, sampling, stop_token_ids, likeliest)


def sampling_fields(sampling: Sampling, stop_token_ids: list[int]) -> dict[str, Any]:
    """Return the sampling parameters that are not neutral, by the names that vLLM has for them."""
    seed = {} if sampling.seed is None else {"seed": sampling.seed}
    start = sampling.experts_from
    fields = {name: getattr(sampling, name) for name in NEUTRAL}
    # The text is read from the ids, which must hold whatever ended the answer.
    stop = {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": stop_token_ids,
        **seed,
        **({} if start is None else {"routed_experts_prompt_start": start}),
        **(stop if sampling.stop else {}),
        **({"structured_outputs": sampling.structure} if sampling.structure else {}),
        **{name: value for name, value in fields.items() if value != NEUTRAL[name]},
    }


def checked(
    ids: list[int],
    logprobs: list[Any],
    versions: list[int],
    reason: Any,
    experts: tuple[bytes, ...] = (),
    supports: list[list[int]] | tuple[()] = (),
) -> Completion:
    """Return the completion, if it is whole.

    Raises:
        Unavailable: If the server was interrupted.
        ModelError: If the completion is empty, its lists differ in length, a logprob is missing or
            not finite, a token is not in its own support, or it ended in no known way.
    """
    if isinstance(reason, str) and reason not in ("stop", "length"):  # abort, error
        problem = f"the server ended the completion with {reason!r}"
        raise Unavailable(problem, away=False, answered=True)
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
    if supports and len(supports) != len(ids):
        raise ModelError(f"the server sent {len(ids)} token ids and {len(supports)} supports")
    if any(kept and token not in kept for token, kept in zip(ids, supports, strict=False)):
        raise ModelError("the server sent a token that is not in its own support")
    return Completion(ids, logprobs, versions, reason, experts, [*supports])


async def generate_wire(
    client: JsonClient,
    served: Served,
    prompt_ids: list[int],
    sampling: Sampling,
    stop_token_ids: list[int],
    *,
    vision: ImageProcessor | None = None,
    versions_told: bool = True,
) -> Completion:
    """Ask ``/inference/v1/generate``.

    The client's base URL is the server's root. Where weights are swapped under running requests,
    one completion may have tokens of several versions, which ``/v1/completions`` does not tell
    apart. Nor does that take images beside token ids.

    Args:
        client: Asks the server.
        served: The model and version that are asked for.
        prompt_ids: The tokens that are continued.
        sampling: The sampling settings, and the prompt's images.
        stop_token_ids: The tokens that end it.
        vision: Prepares images.
        versions_told: Whether the server tells versions: those of weights that change in place.

    Raises:
        ModelError: If the server failed, its answer lacks ids, logprobs or versions, or it makes
            other tokens of the images.
        ContextFull: If the model has sampled a placeholder before an image.
    """
    likeliest = logprobs_to_ask(sampling)
    tokens, seen = prompt_ids, dict[str, Any]()
    if sampling.images:
        if vision is None:
            raise ModelError("images are not sent to this server: it was started without them")
        tokens, parts = await asyncio.to_thread(vision.as_sent, prompt_ids, sampling.images)
        seen = {"content_parts": parts, "return_token_ids": True}
    body: dict[str, Any] = {
        "model": served.model,
        "token_ids": tokens,
        **seen,
        **salted(served),
        "sampling_params": {
            "logprobs": likeliest,
            "detokenize": bool(sampling.stop),
            **every_field(sampling, stop_token_ids),
        },
    }
    answer = await client.send("/inference/v1/generate", body)
    try:
        choice = answer["choices"][0]
        ids = list(choice["token_ids"])
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        versions = [served.version] * len(ids)
        if versions_told:
            versions = [
                int(span["version"])
                for span in choice["weight_versions"]
                for _ in range(span["start"], span["end"])
            ]
        reason = choice["finish_reason"]
        read = answer["prompt_token_ids"] if seen else prompt_ids
        experts = choice.get("routed_experts")
        supports = read_supports(
            {top["token_id"]: top["logprob"] for top in token["top_logprobs"]}
            for token in choice["logprobs"]["content"]
            if likeliest
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(
            f"{hide_urls(client.base_url)} does not tell ids, logprobs and weight versions as vLLM "
            f"0.32 does (missing: {error})"
        ) from error
    if read != prompt_ids:
        raise ModelError(
            f"{hide_urls(client.base_url)} makes other tokens of the prompt's images than the "
            "model's processor does here; serve the same model, with its own processor settings"
        )
    rows = requested_experts(experts, sampling.experts_from, len(prompt_ids), len(ids))
    return checked(ids, logprobs, versions, reason, rows, supports)
