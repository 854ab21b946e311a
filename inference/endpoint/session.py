"""One rollout's side of the endpoint: it answers an agent's requests, and records them."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vf.inference.endpoint.address import Endpoint
from vf.inference.endpoint.dialect import TOO_LONG, Answered, ModelRequest, Refusal
from vf.inference.endpoint.lineages import Lineages, Start
from vf.inference.endpoint.request_options import MOST_NOTED, as_sent, note, samplings
from vf.inference.endpoint.server import serving
from vf.inference.endpoint.stored import Stored
from vf.inference.endpoint.under_way import UnderWay, ended
from vf.inference.model import (
    ContextFull,
    LimitReached,
    Model,
    Reply,
    Sampling,
    context_size,
)
from vf.inference.models.token_model import PromptTooLong, TokenModel
from vf.inference.rendering.next_prompt import Unrenderable
from vf.inference.request_limits import MOST_REQUESTS
from vf.runtime.errors import ConfigError, InfrastructureError, ModelError
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message
from vf.traces.trace import StopReason, Trace

_CHARACTERS_PER_TOKEN = 4  # about, where there is no tokenizer


class Session:
    """Answers the requests of one rollout. Made by :func:`open_session`.

    Attributes:
        endpoint: Where the agent finds it.
        socket: The Unix socket that leads to the same server.
        answered: How many requests have been answered.
        in_flight: How many answers are being sampled.
        refused: What the last refusal said; empty without one.
        full: Whether the last request was refused for its length.
        reward: What a harness has reported, or None.
        strict_model: Whether only requests for ``endpoint.model`` are answered.
        stored: The conversations behind the answers so far, by :attr:`Answered.id`.
        reading: Held while a request's body is read, which may be in a thread.
        turns: Held by each request from when its body is read until it is answered.
        context: How many tokens the model's context holds, or None.
    """

    def __init__(
        self,
        model: Model,
        *,
        trace: Trace,
        sampling: Sampling,
        seed: int,
        max_turns: int,
        max_tokens: int | None,
        strict_model: bool,
        on_change: Callable[[Session], None],
    ) -> None:
        self.endpoint = Endpoint("", _secret("sk"), reward_key=_secret("rk"))
        self.socket = Path()
        self.answered = 0
        self.reward: float | None = None
        self._stored: dict[str, tuple[list[Message], int]] = {}
        self.stored: Mapping[str, Sequence[Message]] = Stored(self._stored)
        self.reading, self.turns = asyncio.Lock(), asyncio.Semaphore(MOST_REQUESTS)
        self._rendering = asyncio.Lock()
        self.context = context_size(model)
        self._model = model
        self._trace = trace
        self._sampling = sampling
        self._seed = seed
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self.strict_model = strict_model
        self._lineages = Lineages(trace)
        self._under_way = UnderWay()
        self._end: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self._limit: StopReason | None = None  # that a request was beyond
        self._begun = 0  # answers, those that failed included
        self.in_flight = 0
        self.refused = ""
        self.full = False
        self._on_change = on_change
        self._closed = False

    async def answer(
        self, request: ModelRequest, *, key: int | None = None, retry: bool = False
    ) -> Answered:
        """Answer a request, and record it in the trace.

        If the caller is cancelled, an answer that is ready within a few seconds is recorded for a
        ``retry`` to have; after that, nothing of the request remains.

        Args:
            request: The request.
            key: Equal for equal requests.
            retry: Whether the client has sent it before and got no answer: it gets the answer that
                is under way, or that was given.

        Raises:
            Refusal: If the request cannot be answered; the message says why.
        """
        answer = self._under_way.find(key) if retry and key is not None else None
        try:
            if answer is None:
                self._check(request.model)
                answer = self._under_way.start(self._answer(request), key)
            answered = await self._under_way.wait(answer)
        except Refusal as refusal:
            self.refused, self.full = str(refusal), refusal.code == TOO_LONG
            raise
        self.full = False
        return answered

    async def count(self, request: ModelRequest) -> int:
        """Return how many tokens the prompt of a request has; an estimate without a tokenizer.

        Raises:
            Refusal: If the request could not be answered, either.
        """
        self._check(request.model)
        start = self._begin(request)
        try:
            if isinstance(self._model, TokenModel):
                return await self._model.count_prompt(start.conversation)
            seen = sum(image.tokens for message in request.messages for image in message.images)
            texts = [[replace(m, images=[]).to_openai() for m in request.messages], request.tools]
            return len(json.dumps(texts, ensure_ascii=False)) // _CHARACTERS_PER_TOKEN + seen
        except LimitReached as limit:
            raise self._limited(limit) from limit
        except (ConfigError, Unrenderable) as error:
            raise Refusal(str(error), param="messages") from error
        finally:
            self._lineages.undo(start)

    def report(self, reward: Any) -> None:
        """Take the reward that a harness has found by itself.

        Raises:
            Refusal: If the reward is not in [0, 1], or one has been reported.
        """
        number = isinstance(reward, int | float) and not isinstance(reward, bool)
        if not number or not math.isfinite(reward) or not 0 <= reward <= 1:
            raise Refusal("reward: it must be a number in [0, 1]", param="reward")
        if self.reward is not None:
            raise Refusal("a reward has been reported for this rollout", 409)
        self.reward = float(reward)

    def unexpected(self, error: Exception) -> None:
        """Record a fault of the endpoint's own, after which the rollout continues."""
        faults = self._trace.info.setdefault("endpoint_faults", [])
        if len(faults) < MOST_NOTED:
            faults.append("".join(traceback.format_exception(error)))

    async def over(self) -> StopReason:
        """Wait until a limit leaves no room for another answer.

        Returns:
            The limit that an agent has reached and asked beyond.

        Raises:
            InfrastructureError: If the model failed.
        """
        return await asyncio.shield(self._end)

    @property
    def clients(self) -> int:
        """How many clients wait for an answer."""
        return self._under_way.clients

    async def close(self) -> None:
        """Refuse all requests from now on, and cancel those under way."""
        self._closed = True
        await self._under_way.close()
        if self._end.done():
            self._end.exception()  # no one has to wait for it
        else:
            self._end.cancel()

    def check(self) -> None:
        """Make sure that there is a reason to ask.

        Raises:
            InfrastructureError: If the model failed.
        """
        if self._end.done() and not self._end.cancelled() and (error := self._end.exception()):
            raise error

    def _check(self, model: str) -> None:
        """Raise Refusal if no request, or none for this model, is answered."""
        if self._closed:
            raise ended()
        if self._end.done() and (error := self._end.exception()) is not None:
            raise Refusal(f"the model failed: {error}", 503)
        if self._limit is not None:
            raise _over(self._limit)
        if self.strict_model and model != self.endpoint.model:
            text = f"The model {model!r} does not exist; this endpoint has {self.endpoint.model!r}"
            raise Refusal(text, 404, code="model_not_found", param="model")

    async def _answer(self, request: ModelRequest) -> Answered:
        note(request, self.endpoint.model, self._trace.info)
        samplings = self._samplings(request)
        self.in_flight += request.count
        self._on_change(self)
        try:
            return await self._sampled(request, samplings)
        finally:
            self.in_flight -= request.count
            self._end_if_idle()
            self._on_change(self)

    def _begin(self, request: ModelRequest) -> Start:
        start = self._lineages.begin(request.messages, request.tools, self._begun)
        start.conversation.rendering = self._rendering
        return start

    async def _sampled(self, request: ModelRequest, samplings: Sequence[Sampling]) -> Answered:
        starts: list[Start] = []
        try:
            for _ in range(request.count):
                start = self._begin(request)
                if not self._sampling.fixed:
                    start.conversation.options = request.options
                self._begun += 1
                starts.append(start)
            answers = await _all(map(self._respond, starts, samplings))
        except BaseException:
            for start in starts:
                self._lineages.undo(start)
            raise
        answered = Answered([], self.endpoint.model)
        replies = []
        for start, (reply, seconds) in zip(starts, answers, strict=True):
            sent = replace(reply, message=as_sent(reply.message, request))
            self._lineages.commit(start, sent, reply.message, seconds)
            replies.append(sent)
            timing = self._trace.timing
            timing["model"] = timing.get("model", 0.0) + seconds
        answered.replies = replies
        self._stored[answered.id] = self._trace.messages, len(self._trace.messages)
        self.answered += 1
        return answered

    async def _respond(self, start: Start, sampling: Sampling) -> tuple[Reply, float]:
        began = time.perf_counter()
        try:
            reply = await self._model.respond(start.conversation, sampling)
        except LimitReached as limit:
            raise self._limited(limit) from limit
        except PromptTooLong as error:
            if not self._trace.turns:
                raise self._failed(error) from error
            raise _too_long(str(error)) from error
        except (ConfigError, Unrenderable) as error:
            raise Refusal(f"messages: {error}", param="messages") from error
        except InfrastructureError as error:
            raise self._failed(error) from error
        except Exception as error:
            failure = ModelError(f"the model raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            raise self._failed(failure) from error
        return reply, time.perf_counter() - began

    def _limited(self, limit: LimitReached) -> Refusal:
        if limit.reason is StopReason.MAX_SEQ_LEN:
            if isinstance(limit, ContextFull) and limit.limit:
                return _too_long(
                    f"This model's maximum context length is {limit.limit} tokens. However, your "
                    f"messages resulted in {limit.tokens} tokens. Please reduce the length of the "
                    "messages."
                )
            return _too_long("This model's maximum context length is exceeded.")
        return self._ended(limit.reason)

    def _ended(self, reason: StopReason) -> Refusal:
        self._limit = self._limit or reason
        self._end_if_idle()
        return _over(self._limit)

    def _end_if_idle(self) -> None:
        """End the rollout if a limit is reached, and no answer under way that came before it."""
        if self._limit is not None and not self.in_flight and not self._end.done():
            self._end.set_result(self._limit)

    def _failed(self, error: InfrastructureError) -> Refusal:
        if not self._end.done():
            self._end.set_exception(error)
        return Refusal(f"the model failed: {error}", 503)

    def _samplings(self, request: ModelRequest) -> list[Sampling]:
        """Return how to sample each answer, within the rollout's budgets.

        Raises:
            Refusal: If the budgets are spent, which ends the rollout.
        """
        trace, most = self._trace, self._sampling.max_tokens
        if len(trace.turns) + self.in_flight + request.count > self._max_turns:
            raise self._ended(StopReason.MAX_TURNS)
        if self._max_tokens is not None:
            most = min(most, self._max_tokens - trace.completion_tokens)
        if most < 1:
            raise self._ended(StopReason.MAX_TOKENS)
        numbers = range(self._begun, self._begun + request.count)
        seeds = [derive_seed(self._seed, "turn", number) for number in numbers]
        return samplings(request, self._sampling.with_(max_tokens=most), seeds)


@asynccontextmanager
async def open_session(
    model: Model,
    *,
    trace: Trace,
    sampling: Sampling,
    seed: int,
    max_turns: int,
    max_tokens: int | None = None,
    strict_model: bool = False,
    on_change: Callable[[Session], None] = lambda session: None,
) -> AsyncIterator[Session]:
    """Open the endpoint of a rollout.

    Args:
        model: The model that answers.
        trace: The trace to fill: messages, tools, branches, forks, lineages, turns, tool events,
            ``info["asked"]`` and ``timing["model"]``.
        sampling: The sampling settings. Unless they are ``fixed``, an agent's own replace them.
        seed: Every answer derives its own from it.
        max_turns: Maximum answers.
        max_tokens: Maximum tokens sampled in all answers, except those sampled at the same time as
            the last; None for no limit.
        strict_model: Refuse requests for any other model than the endpoint's.
        on_change: Called when answers begin and end, with ``in_flight`` as it is then.

    Raises:
        InfrastructureError: If the model failed, whatever the agent made of that. Raised at the end
            of the block, unless it raises something itself.
    """
    session = Session(
        model,
        trace=trace,
        sampling=sampling,
        seed=seed,
        max_turns=max_turns,
        max_tokens=max_tokens,
        strict_model=strict_model,
        on_change=on_change,
    )
    async with serving(session, trace.id) as (url, session.socket):
        session.endpoint = replace(session.endpoint, url=url)
        try:
            yield session
        finally:
            await session.close()
    session.check()


async def _all(coroutines: Iterator[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines at once; if one fails, cancel the others and wait for their end."""
    first, *others = coroutines
    if not others:
        return [await first]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in (first, *others)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _secret(kind: str) -> str:
    return f"{kind}-{secrets.token_urlsafe(24)}"


def _too_long(message: str) -> Refusal:
    return Refusal(message, code=TOO_LONG, param="messages")


def _over(reason: StopReason) -> Refusal:
    return Refusal(f"this rollout is over: {reason.value}", 410, code="rollout_ended")
