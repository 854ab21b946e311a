"""Limits of one rollout that the environment does not know: wall time and price."""

from __future__ import annotations

import asyncio
import math
import time

from vf.evaluation.eval_config import Limits, Price
from vf.inference.model import Conversation, LimitReached, Model, Reply, Sampling
from vf.runtime.errors import ConfigError
from vf.traces.trace import StopReason


class Limited:
    """A model for one rollout, which stops answering when a limit is reached.

    Wall time counts from here, and ends an answer that is under way; the environment's own work
    (a tool call, say) has its own deadline, and is not cut short. The price is looked at before
    each answer.

    Args:
        model: The model that answers.
        limits: The limits; ``max_seconds`` and ``max_cost`` are enforced here.
        price: The model's price.
    """

    def __init__(self, model: Model, limits: Limits, price: Price | None) -> None:
        self._model = model
        self._limits = limits
        self._price = price
        self._cost = 0.0
        self._started = time.monotonic()
        # What a model may have beside the protocol.
        self.max_seq_len = getattr(model, "max_seq_len", None)
        self.prompt_tokens = getattr(model, "prompt_tokens", None)

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Answer, unless a limit is reached.

        Raises:
            ConfigError: If the price of answers has a limit and the server does not count tokens.
            LimitReached: If one is reached.
            ModelError: If the model gives no answer.
        """
        seconds, cost = self._limits.max_seconds, self._limits.max_cost
        if cost is not None and self._cost >= cost:
            raise LimitReached(StopReason.MAX_COST)
        left = None if seconds is None else self._started + seconds - time.monotonic()
        if left is not None and left <= 0:
            raise LimitReached(StopReason.MAX_SECONDS)
        try:
            async with asyncio.timeout(left) as deadline:
                reply = await self._model.respond(conversation, sampling)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise LimitReached(StopReason.MAX_SECONDS) from None
        if self._price is not None:
            self._cost += self._price.of(reply.prompt_tokens, reply.completion_tokens)
            if cost is not None and math.isnan(self._cost):
                raise ConfigError(
                    "limits.max_cost cannot hold: the API reports no tokens (its answers have no "
                    "usage), so their cost is unknown. Remove max_cost; max_turns and max_seconds "
                    "limit a rollout"
                )
        return reply
