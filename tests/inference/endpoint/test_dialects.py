"""Rollouts of agents that speak Responses or Anthropic's Messages, through the real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from tests.inference.endpoint.dialect_agents import KINDS, agent_of
from tests.inference.endpoint.rollout_talk import (
    CALL,
    Engine,
    Log,
    Texts,
    assert_exact,
    opened,
    token_model,
)
from tests.inference.tiny_serving import load_model, running_engine
from tests.late import Late
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.endpoint import server
from vf.inference.endpoint.session import Session
from vf.inference.model import Model, Sampling
from vf.inference.models.scripted_model import ScriptedModel
from vf.runtime.errors import EngineError
from vf.traces.messages import Message, ToolCall
from vf.traces.trace import Trace

anthropic = Late("anthropic")

WILD = 30.0  # a temperature at which whatever the model has learnt hardly matters
USER = [{"role": "user", "content": "Tea?"}]
ERRORS: dict[str, Any] = {
    "responses": openai,
    "previous_response_id": openai,
    "anthropic": anthropic,
}

kinds = pytest.mark.parametrize("kind", KINDS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
two_kinds = pytest.mark.parametrize("kind", ["responses", "anthropic"])


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with running_engine(load_model(), max_seq_len=2048) as running:
        yield running


@asynccontextmanager
async def talking(
    model: Model, kind: str, *, stream: bool = False, key: str = "", **settings: Any
) -> AsyncIterator[tuple[Session, Any, Trace]]:
    async with opened(model, **settings) as (session, _, trace), AsyncExitStack() as stack:
        yield session, await agent_of(kind, session, stack, stream=stream, key=key), trace


@kinds
@streams
def test_reasoning_text_and_calls_of_many_turns_are_one_branch(kind: str, stream: bool) -> None:
    async def run() -> None:
        log = Log(Texts(["<think>Hm.</think>I look.\n" + CALL, CALL + CALL, "Green.", "Yes."]))
        async with talking(token_model(log), kind, stream=stream) as (_, agent, trace):
            text, calls = await agent.say("Tea?")
            assert text.strip() == "I look."
            while calls:
                results = tuple((call, f"{call}: green") for call in reversed(calls))
                text, calls = await agent.say("", results)
            assert text == "Green."
            assert (await agent.say("Sure?"))[0] == "Yes."
        assert len(trace.branches) == 1
        assert (trace.forks, trace.lineages) == ([], [])
        assert [message.role for message in trace.messages] == [
            *("system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant"),
            *("user", "assistant"),
        ]
        assert trace.messages[2].reasoning == "Hm."
        # In the order of the calls, whatever the agent's.
        asked = [call.id for message in trace.messages for call in message.tool_calls]
        assert asked == [m.tool_call_id for m in trace.messages if m.role == "tool"]
        assert [event.kind for event in trace.tool_events] == ["ok"] * 3
        assert_exact(trace, log)

    asyncio.run(run())


@kinds
@streams
def test_whatever_a_real_model_samples_extends_one_branch(
    engine: EmbeddedEngine, kind: str, stream: bool
) -> None:
    async def run() -> None:
        log = Log(Engine(engine))
        sampling = Sampling(12, WILD)
        async with talking(token_model(log), kind, stream=stream, sampling=sampling) as (
            _,
            agent,
            trace,
        ):
            for turn in range(4):
                _, calls = await agent.say(f"Go on, {turn}.")
                while calls:
                    _, calls = await agent.say("", tuple((call, "green") for call in calls))
        assert len(trace.branches) == 1
        assert trace.forks == []
        assert len(trace.turns) >= 4
        assert_exact(trace, log)

    asyncio.run(run())


@kinds
def test_a_model_without_tokens_talks_as_well(kind: str) -> None:
    async def run() -> None:
        model = ScriptedModel([{"look": {"what": "tea"}}, "Green."])
        async with talking(model, kind) as (_, agent, trace):
            _, (call,) = await agent.say("Tea?")
            assert (await agent.say("", ((call, "green"),)))[0] == "Green."
        assert trace.messages[2:] == [
            Message("assistant", tool_calls=[ToolCall("call_0_0", "look", '{"what": "tea"}')]),
            Message("tool", "green", tool_call_id="call_0_0", name="look"),
            Message("assistant", "Green."),
        ]
        assert (trace.branches, trace.forks, trace.lineages) == ([], [], [])

    asyncio.run(run())


@kinds
def test_a_full_context_is_an_error_after_which_an_agent_can_compact(kind: str) -> None:
    async def run() -> None:
        log = Log(Texts(["Yes."]))
        async with talking(token_model(log, max_seq_len=200), kind) as (_, agent, trace):

            async def fill() -> None:
                while len(trace.turns) < 50:
                    await agent.say("More.")

            with pytest.raises(ERRORS[kind].BadRequestError) as refused:
                await fill()
            if kind == "anthropic":
                assert refused.value.body["error"]["type"] == "invalid_request_error"
                assert "prompt is too long" in refused.value.message
            else:
                assert refused.value.code == "context_length_exceeded"
            turns = len(trace.turns)
            await agent.forget()
            await agent.say("A summary.")
        assert len(trace.turns) == turns + 1
        assert [fork.kind for fork in trace.forks] == ["conversation"]
        assert_exact(trace, log)

    asyncio.run(run())


@two_kinds
def test_errors_are_those_of_the_client(kind: str) -> None:
    errors = ERRORS[kind]

    async def run() -> None:
        model = token_model(Texts(["Yes."]))
        async with talking(model, kind, key="wrong") as (_, agent, trace):
            with pytest.raises(errors.AuthenticationError):
                await agent.say("Tea?")
        async with talking(model, kind, max_turns=1, strict_model=True) as (_, agent, trace):
            with pytest.raises(errors.NotFoundError, match="gpt-5"):
                await agent.say("Tea?", model="gpt-5")
            await agent.forget()
            await agent.say("Tea?")
            with pytest.raises(errors.APIStatusError) as over:
                await agent.say("More?")
            assert over.value.status_code == 410
            assert len(trace.turns) == 1

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/responses", "/messages", "/messages/count_tokens"])
@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"model": 1}', b'{"a": NaN}', b'{"model": "policy"}', b"[" * 100_000]
)
def test_a_wrong_body_gets_the_dialects_own_error(path: str, body: bytes) -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."]))) as (session, _, trace):
            headers = {"x-api-key": session.endpoint.key}
            async with (
                aiohttp.ClientSession(headers=headers) as http,
                http.post(session.endpoint.url + path, data=body) as response,
            ):
                answer = await response.json()
            assert response.status == 400
            assert answer["error"]["type"] == "invalid_request_error"
            assert answer.get("type") == ("error" if path.startswith("/messages") else None)
            assert "endpoint_faults" not in trace.info

    asyncio.run(run())


def test_an_unknown_previous_response_is_openais_error() -> None:
    async def run() -> None:
        async with talking(token_model(Texts(["Yes."])), "responses") as (_, agent, _trace):
            with pytest.raises(openai.BadRequestError) as refused:
                await agent.say("Tea?", previous_response_id="resp_0")
            assert refused.value.code == "previous_response_not_found"

    asyncio.run(run())


def test_counted_tokens_are_those_of_the_prompt() -> None:
    async def run() -> None:
        async with talking(token_model(Texts(["Yes."])), "anthropic") as (_, agent, trace):
            request = {"model": "policy", "messages": USER}
            counted = await agent.client.messages.count_tokens(**request)
            assert trace.turns == []
            message = await agent.client.messages.create(**request, max_tokens=9)
            assert (
                counted.input_tokens == message.usage.input_tokens == trace.turns[0].prompt_tokens
            )

    asyncio.run(run())


def test_an_answer_says_which_stop_sequence_ended_it() -> None:
    async def run() -> None:
        texts = Texts(["One. Observation: two."])
        async with talking(token_model(texts), "anthropic") as (_, agent, _trace):
            message = await agent.client.messages.create(
                model="policy",
                max_tokens=64,
                messages=USER,
                stop_sequences=["Never", "Observation:"],
            )
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Observation:")
        assert message.content[0].text == "One."

    asyncio.run(run())


@two_kinds
def test_a_stream_that_is_read_only_in_part_leaves_a_whole_turn(kind: str) -> None:
    async def run() -> None:
        log = Log(Texts(["One. " * 40]))
        async with talking(token_model(log), kind) as (_, agent, trace):
            create = getattr(agent.client, {"anthropic": "messages"}.get(kind, kind)).create
            messages = {"messages": USER, "max_tokens": 64}
            fields = messages if kind == "anthropic" else {"input": USER}
            stream = await create(model="policy", stream=True, **fields)
            async for _ in stream:
                break
            await stream.close()
        assert len(trace.turns) == 1
        assert_exact(trace, log)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body", "end", "error"),
    [
        ("/chat/completions", {"messages": USER}, b"data: [DONE]", b'data: {"error":'),
        ("/responses", {"input": USER}, b"event: response.completed", b"event: response.failed"),
        ("/messages", {"messages": USER, "max_tokens": 9}, b"event: message_stop", b"event: error"),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_stays_open_while_an_answer_is_sampled(
    path: str,
    body: dict[str, Any],
    end: bytes,
    error: bytes,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "PING_SECONDS", 0.001)

    async def run() -> None:
        go = asyncio.Event()
        texts = Texts([go, EngineError("the engine died") if fails else "Yes."])
        async with opened(token_model(texts)) as (session, _, _trace):
            headers = {"x-api-key": session.endpoint.key}
            request = {"model": "policy", "stream": True, **body}
            async with (
                aiohttp.ClientSession(headers=headers) as http,
                http.post(session.endpoint.url + path, json=request) as response,
            ):
                assert (await response.content.readline()).startswith(b":")
                go.set()
                events = await response.read()
            assert response.status == 200
            assert (end in events, error in events) == (not fails, fails)
            assert (b"the engine died" in events) == fails

    if fails:
        with pytest.raises(EngineError):
            asyncio.run(run())
    else:
        asyncio.run(run())
