"""Sessions on samplers that log what they sampled, and what their traces must hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

import vf
from tests.inference.chat_templates import tokenizer
from vf.inference.completions import Completion, TokenSampler
from vf.inference.endpoint.session import Session, open_session
from vf.inference.model import Model, Sampling
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.traces.trace import Trace

RENDERER = Renderer(tokenizer())
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"what": "tea"}}\n</tool_call>'

SOMETIMES = {"experts", "supports", "images"}  # lists of a branch that may be empty


@dataclass
class Log:
    """A sampler that remembers what it sampled, in the order of the requests."""

    sampler: TokenSampler
    entries: list[tuple[list[int], Sampling, Completion]] = field(default_factory=list)

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        completion = await self.sampler.complete(prompt_ids, sampling, stop_token_ids, conversation)
        self.entries.append((list(prompt_ids), sampling, completion))
        return completion


@dataclass
class Engine:
    """An engine in this process as a sampler."""

    engine: Any

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        completion: Completion = await self.engine.generate(prompt_ids, sampling, stop_token_ids)
        return completion


class Texts:
    """Samples the tokens of these texts, one after the other; the last one again and again.

    A text may be an exception to raise, or an event to wait for before the next text is taken.
    """

    def __init__(self, texts: Iterable[str | Exception | asyncio.Event]) -> None:
        self.texts = list(texts)
        self.version = 0
        self.reached = asyncio.Event()

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        text = self._next()
        if isinstance(text, asyncio.Event):
            self.reached.set()
            await text.wait()
            text = self._next()
        if isinstance(text, Exception):
            raise text
        assert isinstance(text, str)
        ids = [*RENDERER.tokenizer.encode(text), RENDERER.closer_id][: sampling.max_tokens]
        ended = ids[-1] == RENDERER.closer_id
        logprobs = [-0.25 - place for place in range(len(ids))]
        self.version += 1
        return Completion(ids, logprobs, [self.version] * len(ids), "stop" if ended else "length")

    def _next(self) -> str | Exception | asyncio.Event:
        return self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]


def new_trace() -> Trace:
    return Trace("agent", vf.Task("t", "Talk."), seed=0)


def token_model(sampler: TokenSampler, **settings: Any) -> TokenModel:
    return TokenModel(sampler, RENDERER, **{"max_seq_len": 4096} | settings)


@asynccontextmanager
async def opened(
    model: Model, trace: Trace | None = None, **settings: Any
) -> AsyncIterator[tuple[Session, openai.AsyncOpenAI, Trace]]:
    """Open a session, and an openai client for it that does not retry."""
    trace = trace or new_trace()
    defaults: dict[str, Any] = {"sampling": Sampling(64), "seed": 7, "max_turns": 1000}
    async with (
        open_session(model, trace=trace, **defaults | settings) as session,
        client(session) as agent,
    ):
        yield session, agent, trace


def client(session: Session, **settings: Any) -> openai.AsyncOpenAI:
    found = session.endpoint
    settings = {"max_retries": 0} | settings
    return openai.AsyncOpenAI(base_url=found.url, api_key=found.key, **settings)


async def say(
    agent: openai.AsyncOpenAI, messages: list[dict[str, Any]], **fields: Any
) -> dict[str, Any]:
    """Ask, append the answer to the messages as the client gives it, and return it."""
    create: Callable[..., Any] = agent.chat.completions.create
    answer = await create(model="policy", messages=messages, **fields)
    message: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
    messages.append(message)
    return message


def assert_exact(trace: Trace, log: Log) -> None:
    """Every completion of the log is in the trace, once, behind its own prompt, as it was."""
    found: dict[int, Any] = {}
    for branch in trace.branches:
        lists = [getattr(branch, name) for name in branch.__slots__ if name not in SOMETIMES]
        assert len({len(each) for each in lists}) == 1
        assert branch.turn_index == sorted(branch.turn_index)
        for turn in dict.fromkeys(branch.turn_index):
            at = [
                place
                for place, (mask, index) in enumerate(
                    zip(branch.loss_mask, branch.turn_index, strict=True)
                )
                if mask and index == turn
            ]
            if at:
                assert turn not in found
                assert at == list(range(at[0], at[-1] + 1))
                span = slice(at[0], at[-1] + 1)
                found[turn] = (
                    branch.token_ids[: at[0]],
                    branch.token_ids[span],
                    branch.logprobs[span],
                    branch.weight_version[span],
                )
        for mask, logprob, version in zip(
            branch.loss_mask, branch.logprobs, branch.weight_version, strict=True
        ):
            assert mask or (logprob, version) == (0.0, -1)
    logged = [(p, c.token_ids, c.logprobs, c.versions) for p, _, c in log.entries]
    assert sorted(found) == list(range(len(trace.turns)))
    assert sorted(found.values()) == sorted(logged)
    assert trace.completion_tokens == sum(len(ids) for _, ids, _, _ in logged)
