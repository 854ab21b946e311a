"""Whether a restored server samples from the weights that it was given."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from vf.inference.completions import Completion, Wire
from vf.inference.leases import Member, Router, Slot
from vf.inference.model import Sampling
from vf.inference.serving import Served, Serving
from vf.inference.token_client import TokenClient
from vf.runtime.api_keys import hide_urls
from vf.runtime.errors import EngineError

log = logging.getLogger(__name__)

SECONDS = 120.0  # without a token


@dataclass(frozen=True)
class ReferenceSample:
    """What was sampled from the newest weights, and how likely the trainer found it.

    Attributes:
        version: Of the weights.
        prompt_ids: The prompt.
        sampling: How it was sampled, with a seed.
        stop_token_ids: What would have ended it.
        token_ids: What was sampled.
        logprobs: Of each token, as the trainer computes it.
        tolerance: Nats by which a server's may differ from that, on average.
    """

    version: int
    prompt_ids: list[int]
    sampling: Sampling
    stop_token_ids: list[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    tolerance: float

    def check(self, member: Member, served: Served, wire: Wire | None = None) -> None:
        """Sample the same from a server that takes no other requests yet.

        Args:
            member: The server.
            served: The model and version that are asked for.
            wire: The protocol, if it is not the member's.

        Raises:
            EngineError: If the server answers as other weights would.
            ModelError: If the server does not answer.
        """
        if served.version != self.version:  # newer weights are on their way, with a probe
            return
        gap = self.gap(asyncio.run(self._sample(member, served, wire)))
        if gap is None:
            log.warning(
                "the vLLM server at %s sampled another first token than was sampled before it "
                "went, so its logprobs cannot be compared; the next publish tries it",
                hide_urls(member.base_url),
            )
            return
        if not gap <= self.tolerance:
            raise EngineError(
                f"the vLLM server at {hide_urls(member.base_url)} was started again and given "
                f"version {self.version}, but its logprobs differ from the trainer's by {gap:.3f} "
                f"nats on average, over inference.logprob_tolerance = {self.tolerance:g}"
            )

    def gap(self, completion: Completion) -> float | None:
        """Return the mean of |log q − log p| in nats over the tokens that are the same.

        With the same weights and the same seed the first one usually is. But where two are nearly
        as likely, rounding decides: None if it is not.
        """
        pairs = zip(self.token_ids, completion.token_ids, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not same:
            return None
        return fmean(
            abs(q - p)
            for q, p in zip(completion.logprobs[:same], self.logprobs[:same], strict=True)
        )

    async def _sample(self, member: Member, served: Served, wire: Wire | None) -> Completion:
        router = Router([Slot(member, Serving(served.model, served.version))])
        client = TokenClient(router, timeout=SECONDS, max_retries=0, wire=wire)
        try:
            return await client.complete(self.prompt_ids, self.sampling, self.stop_token_ids)
        finally:
            await client.close()
