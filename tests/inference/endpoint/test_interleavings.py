"""Requests in any order, at once, cancelled, retried, compacted: the trace is the engine's log."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.inference.endpoint.rollout_talk import (
    CALL,
    TOOL,
    Log,
    Texts,
    assert_exact,
    opened,
    token_model,
)
from vf.inference.completions import Completion
from vf.inference.endpoint import under_way
from vf.inference.endpoint.chat import Chat
from vf.inference.endpoint.dialect import Answered
from vf.inference.endpoint.session import Session
from vf.inference.model import Sampling
from vf.traces.trace import Trace

Messages = list[dict[str, Any]]
CHAT = Chat()
STEPS = 120
ROUNDS = 12  # of the event loop, in which whatever can happen does


@dataclass
class Held:
    """A sampler that answers when the test says so, in any order."""

    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    count: int = 0

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        self.count += 1
        text = f"Answer {self.count}." if self.count % 3 else CALL
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn
        finally:
            self.waiting.remove(turn)
        return await Texts([text]).complete(prompt_ids, sampling, stop_token_ids)


@dataclass
class Request:
    """One request of the agent, and those that wait for its answer."""

    body: dict[str, Any]
    clients: list[asyncio.Task[Answered]]


class Agent:
    """An agent that does anything at any time.

    Attributes:
        known: Conversations that it has had so far, each up to an answer.
    """

    def __init__(self, session: Session, sampler: Held, seed: int) -> None:
        self.session, self.sampler, self.rng = session, sampler, random.Random(seed)
        self.known: list[Messages] = []
        self.requests: list[Request] = []
        self.answers: dict[str, Answered] = {}

    async def work(self) -> None:
        """Do some of everything."""
        actions = [self.ask] * 5 + [self.release] * 5 + [self.leave, self.retry]
        for _ in range(STEPS):
            self.rng.choice(actions)()
            for _ in range(ROUNDS if self.rng.random() < 0.7 else 1):
                await asyncio.sleep(0)
            self.take()
        await self.end()

    async def end(self) -> None:
        """Let all requests end."""
        while any(not client.done() for each in self.requests for client in each.clients):
            self.release()
            await asyncio.sleep(0)
        self.take()

    def ask(self) -> None:
        """Begin a conversation, or continue, repeat, change or compact one."""
        kind = self.rng.random()
        messages: Messages = [{"role": "system", "content": "Be brief."}]
        if self.known and kind < 0.9:
            messages = list(self.rng.choice(self.known[-4:] if kind < 0.7 else self.known))
            if kind > 0.8 and len(messages) > 3:
                place = self.rng.randrange(1, len(messages) - 1)
                del messages[place : self.rng.randrange(place, len(messages))]
        for call in messages[-1].get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "green"})
        messages.append({"role": "user", "content": self.rng.choice(["Tea?", "Milk?"])})
        self.begin(messages, self.rng.random() < 0.9, self.rng.choice([1, 1, 1, 2]))

    def begin(self, messages: Messages, tools: bool, count: int = 1) -> None:
        """Send a request."""
        body: dict[str, Any] = {"model": "policy", "messages": messages, "n": count}
        if tools:
            body["tools"] = [TOOL]
        self.requests.append(Request(body, []))
        self.send(self.requests[-1])

    def send(self, request: Request, *, retry: bool = False) -> None:
        key = hash(json.dumps(request.body))
        asked = CHAT.read(json.loads(json.dumps(request.body)), self.session.stored)
        answer = self.session.answer(asked, key=key, retry=retry)
        request.clients.append(asyncio.ensure_future(answer))

    def release(self) -> None:
        """Let one answer be sampled."""
        waiting = [turn for turn in self.sampler.waiting if not turn.done()]
        if waiting:
            self.rng.choice(waiting).set_result(None)

    def leave(self) -> None:
        """Cancel a request of one answer. Of two, one may be sampled by then."""
        singles = [each for each in self.requests if each.body["n"] == 1]
        if singles:
            self.rng.choice(self.rng.choice(singles).clients).cancel()

    def retry(self) -> None:
        """Send a request again that may be under way or answered."""
        if self.requests:
            self.send(self.rng.choice(self.requests), retry=True)

    def take(self) -> None:
        """Take the answers that have come."""
        for request in self.requests:
            for client in request.clients:
                if not client.done() or client.cancelled():
                    continue
                answered = client.result()
                if answered.id not in self.answers:
                    self.answers[answered.id] = answered
                    for reply in answered.replies:
                        said = reply.message.to_openai()
                        self.known.append([*request.body["messages"], said])


@pytest.mark.parametrize("seed", range(12))
def test_every_sampled_token_is_trained_on_once_behind_its_own_prompt(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_way, "GRACE_SECONDS", 0.0)

    async def run() -> tuple[Trace, Log, Agent]:
        sampler = Held()
        log = Log(sampler)
        async with opened(token_model(log)) as (session, _, trace):
            agent = Agent(session, sampler, seed)
            await agent.work()
            lineages = len(trace.lineages)
            for record in list(trace.lineages):  # whoever was cancelled: each can be continued
                messages = [message.to_openai() for message in record.messages]
                agent.begin([*messages, {"role": "user", "content": "Last."}], bool(record.tools))
            await agent.end()
            assert len(trace.lineages) == lineages
        return trace, log, agent

    trace, log, agent = asyncio.run(run())
    assert len(agent.answers) > STEPS // 8
    assert_exact(trace, log)
    turns = [turn for record in trace.lineages for turn in record.turns]
    assert sorted(turns) == list(range(len(trace.turns)))
    shown = {record.messages[at].content for record in trace.lineages for at in record.answers}
    got = {reply.message.content for each in agent.answers.values() for reply in each.replies}
    assert got <= shown
