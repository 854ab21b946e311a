"""Asks servers for completions, patiently, wherever a conversation is best answered."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from vf.inference.completions import Completion, Wire, generate_wire, openai_wire, vllm_wire
from vf.inference.leases import Lease, Leases, Member, Router, Slot
from vf.inference.model import Sampling
from vf.inference.patience import AWAY_SECONDS, Again, Patience, Request, Room
from vf.inference.serving import Serving
from vf.inference.tinker_wire import tinker_wire
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError, ServerDown
from vf.runtime.own_deadline import own_deadline

WIRES: dict[str, Wire] = {
    "openai": openai_wire,
    "vllm": vllm_wire,
    "generate": generate_wire,
    "tinker": tinker_wire,
}
MOVES = 3  # servers that may go down under one request, before it is not asked again


class _Line:
    """How one server is asked.

    Args:
        member: The server.
        wire: The protocol to ask it with.
        leases: Know when it pauses.
        timeout: Seconds without progress.
        max_retries: Attempts after the first.
        backoff: Seconds before the first retry.
        has_answered: Whether it is known to have answered.
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
        has_answered: bool,
    ) -> None:
        self.wire = wire
        self.client = JsonClient(member.base_url, api_key=member.api_key)
        self.patience = Patience(
            self.client.base_url,
            timeout=timeout,
            max_retries=max_retries,
            backoff=backoff,
            away=member.away,
            has_answered=has_answered,
            count=lambda: processed_tokens(self.client),
            still=lambda: leases.still(member),
        )


class TokenClient:
    """Samples from servers, as patiently as :class:`~vf.inference.patience.Patience` has it.

    Args:
        leases: The leases of servers, one of which is taken before each attempt.
        timeout: Seconds without progress after which a completion is given up.
        max_retries: Attempts after the first at errors that are not known to pass.
        backoff: Seconds before the first retry; doubles each time.
        wire: The protocol, if it is not the servers' own.
        has_answered: Whether the servers are known to have answered, such as to another process.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        timeout: float = 120.0,
        max_retries: int = 4,
        backoff: float = 0.25,
        wire: Wire | None = None,
        has_answered: bool = False,
    ) -> None:
        self._leases = leases
        self._how: dict[str, Any] = {
            "timeout": timeout,
            "max_retries": max_retries,
            "backoff": backoff,
            "has_answered": has_answered,
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
            ModelError: If the server failed, or its answer is incomplete.
            ServerDown: If the server went down, and may be started again.
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
                    outcome = await self._ask(lease, request, prompt_ids, sampling, stop_token_ids)
                    if isinstance(outcome, Completion):
                        return outcome
                    if isinstance(outcome, ServerDown):
                        downs.append(outcome)
                    else:
                        await asyncio.sleep(outcome.seconds)
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
            ModelError: If the attempt may not be repeated.
        """
        line = self._line(lease.member)
        outcome: Completion | Again | None = None
        failure: ModelError | None = None
        try:
            outcome = await line.patience.attempt(
                lambda: line.wire(line.client, lease.served, prompt_ids, sampling, stop_token_ids),
                request,
            )
        except Again as error:
            outcome = error
        except ModelError as error:
            failure = error
        finally:
            lost = await self._leases.give_back(lease)
        if lost:
            # A new server may have answered, with other weights than the lease says.
            cause = outcome.__cause__ if isinstance(outcome, Again) else failure
            why = f": {cause}" if cause else " during the request"
            down = ServerDown(f"the inference server went down{why}")
            down.__cause__ = cause
            return down
        if failure is not None:
            raise failure
        assert outcome is not None
        return outcome

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
