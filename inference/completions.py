"""Sampling over HTTP: token ids in, token ids and logprobs out."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from vf.inference.experts import asked
from vf.inference.leases import Lease, Leases, Member, Router, Slot
from vf.inference.model import NEUTRAL, Sampling
from vf.inference.patience import AWAY_SECONDS, Again, Patience, Request, Room
from vf.inference.serving import Served, Serving
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError, ServerDown
from vf.runtime.own_deadline import own_deadline
from vf.traces.packed import unpack_supports

MOVES = 3  # servers that may go down under one request, before it is not asked again


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
            prompt_ids: What it continues.
            sampling: How.
            stop_token_ids: What ends it.
            conversation: Key of the conversation that it is a turn of, which is best answered where
                its beginning was.

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
        experts = choice.get("routed_experts")
        supports = unpack_supports(choice.get("supports", []))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(
            "the server's completion lacks token ids or logprobs; it must understand "
            f"`return_token_ids` and `logprobs` (missing: {error})"
        ) from error
    told = asked(experts, sampling.experts_from, len(prompt_ids), len(ids))
    return checked(ids, logprobs, versions, reason, told, supports)


class _Line:
    """How one server is asked.

    Args:
        member: The server.
        wire: How to ask it.
        leases: Know when it pauses.
        timeout: Seconds without progress.
        max_retries: Attempts after the first.
        backoff: Seconds before the first retry.
        known: Whether it is known to have answered.
    """

    def __init__(
        self,
        member: Member,
        wire: Wire,
        leases: Leases,
        *,
        timeout: float,
        max_retries: int,
        backoff: float,
        known: bool,
    ) -> None:
        self.wire = wire
        self.client = JsonClient(member.base_url, api_key=member.api_key)
        self.patience = Patience(
            self.client.base_url,
            timeout=timeout,
            max_retries=max_retries,
            backoff=backoff,
            away=member.away,
            known=known,
            count=lambda: processed_tokens(self.client),
            still=lambda: leases.still(member),
        )


class TokenClient:
    """Samples from servers, as patiently as :class:`~vf.inference.patience.Patience` has it.

    Args:
        leases: Which server is asked, before each attempt.
        timeout: Seconds without progress after which a completion is given up.
        max_retries: Attempts after the first at errors that are not known to pass.
        backoff: Seconds before the first retry; doubles each time.
        wire: How to ask, if not as the servers' own wire says.
        known: Whether the servers are known to have answered, such as to another process.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        timeout: float = 120.0,
        max_retries: int = 4,
        backoff: float = 0.25,
        wire: Wire | None = None,
        known: bool = False,
    ) -> None:
        self._leases = leases
        self._how: dict[str, Any] = {
            "timeout": timeout,
            "max_retries": max_retries,
            "backoff": backoff,
            "known": known,
        }
        self._wire = wire
        self._lines: dict[Member, _Line] = {}
        self._room = Room("the inference engine")

    @classmethod
    def to(
        cls, base_url: str, model: str | Serving, *, away: float = AWAY_SECONDS, **how: Any
    ) -> TokenClient:
        """Return a client of one server that speaks OpenAI's API.

        Args:
            base_url: Up to and including ``/v1``.
            model: The model's name on it, or what says what it serves at the moment.
            away: Seconds for which it is waited for while it refuses connections.
            **how: Further arguments of the client.
        """
        serving = Serving(model) if isinstance(model, str) else model
        return cls(Router([Slot(Member(base_url, away=away), serving)]), **how)

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        """Sample one completion.

        A server that goes down under the request is left, for another one if there is one.

        Raises:
            ModelError: The server failed, or its answer is incomplete.
            ServerDown: It went down, and may be started again.
        """
        request = Request(sampling.max_tokens)
        downs: list[ServerDown] = []
        with own_deadline():
            async with self._room.place():
                while len(downs) <= MOVES:
                    try:
                        lease = await self._leases.take(conversation)
                    except ServerDown as error:
                        downs.append(error)
                        break
                    found = await self._ask(lease, request, prompt_ids, sampling, stop_token_ids)
                    if isinstance(found, Completion):
                        return found
                    if isinstance(found, ServerDown):
                        downs.append(found)
                    else:
                        await asyncio.sleep(found.seconds)
        raise downs[0]  # the cause of the others

    async def _ask(
        self,
        lease: Lease,
        request: Request,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
    ) -> Completion | Again | ServerDown:
        """Return the completion, or what became of the attempt that may be repeated.

        Raises:
            ModelError: It may not.
        """
        line = self._line(lease.member)
        found: Completion | Again | None = None
        failure: ModelError | None = None
        try:
            found = await line.patience.attempt(
                lambda: line.wire(line.client, lease.served, prompt_ids, sampling, stop_token_ids),
                request,
            )
        except Again as error:
            found = error
        except ModelError as error:
            failure = error
        finally:
            lost = await self._leases.give_back(lease)
        if lost:
            # A new server may have answered, with other weights than the lease says.
            cause = found.__cause__ if isinstance(found, Again) else failure
            why = f": {cause}" if cause else " during the request"
            down = ServerDown(f"the inference server went down{why}")
            down.__cause__ = cause
            return down
        if failure is not None:
            raise failure
        assert found is not None
        return found

    def _line(self, member: Member) -> _Line:
        line = self._lines.get(member)
        if line is None:
            wire = self._wire or WIRES[member.wire]
            line = self._lines[member] = _Line(member, wire, self._leases, **self._how)
        return line

    async def close(self) -> None:
        """Close the connections."""
        for line in self._lines.values():
            await line.client.close()


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
        ModelError: It is empty, its lists differ in length, a logprob is missing or not finite,
            a token is not in its own support, or it ended in no known way.
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
        experts = choice.get("routed_experts")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(
            f"{client.base_url} does not tell ids, logprobs and weight versions as vLLM 0.32 does "
            f"(missing: {error})"
        ) from error
    told = asked(experts, sampling.experts_from, len(prompt_ids), len(ids))
    return checked(ids, logprobs, versions, reason, told)


WIRES: dict[str, Wire] = {"openai": openai_wire, "generate": generate_wire}
