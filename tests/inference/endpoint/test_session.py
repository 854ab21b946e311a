"""Budgets, failures, retries and clients that go away: what happens to the rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.inference.endpoint.rollout_talk import (
    CALL,
    RENDERER,
    TOOL,
    Log,
    Texts,
    assert_exact,
    client,
    opened,
    say,
    token_model,
)
from tests.waiting import until
from vf.inference.endpoint import server, under_way
from vf.inference.model import Conversation, LimitReached, Reply, Sampling
from vf.inference.models.scripted_model import ScriptedModel
from vf.runtime.errors import EngineError
from vf.runtime.own_deadline import clocked, own_deadline
from vf.traces.messages import Message
from vf.traces.trace import StopReason

USER = {"role": "user", "content": "Tea?"}
MORE = {"role": "user", "content": "More."}


def test_the_turn_budget_ends_the_rollout_when_one_more_is_asked_for() -> None:
    async def run() -> None:
        async with opened(token_model(Texts(["Yes."])), max_turns=2) as (session, agent, trace):
            messages: list[dict[str, Any]] = [USER]
            for _ in range(2):
                await say(agent, messages)
                messages.append(MORE)
            over = asyncio.ensure_future(session.over())
            with pytest.raises(openai.APIStatusError) as refused:
                await say(agent, messages)
            assert refused.value.status_code == 410
            assert await over is StopReason.MAX_TURNS
            assert session.answered == len(trace.turns) == 2

    asyncio.run(run())


def test_answers_under_way_at_the_end_of_the_turns_are_given() -> None:
    async def run() -> None:
        gate = asyncio.Event()
        model = token_model(Texts([gate, "Yes."]))
        async with opened(model, max_turns=1) as (session, agent, trace):
            first = asyncio.ensure_future(say(agent, [USER]))
            await until(lambda: session.in_flight)
            over = asyncio.ensure_future(session.over())
            with pytest.raises(openai.APIStatusError) as refused:
                await say(agent, [USER, MORE])
            assert refused.value.status_code == 410
            assert not over.done()
            gate.set()
            assert await over is StopReason.MAX_TURNS
            await first
            assert session.answered == len(trace.turns) == 1

    asyncio.run(run())


def test_the_token_budget_bounds_the_last_answer_and_ends_the_rollout() -> None:
    async def run() -> None:
        log = Log(Texts(["One two three four five."]))
        settings: dict[str, Any] = {"sampling": Sampling(8), "max_tokens": 11}
        async with opened(token_model(log), **settings) as (session, agent, trace):
            messages: list[dict[str, Any]] = [USER]
            for _ in range(2):
                await say(agent, messages, max_tokens=1000)
                messages.append(MORE)
            with pytest.raises(openai.APIStatusError):
                await say(agent, messages)
            assert await session.over() is StopReason.MAX_TOKENS
        assert [turn.completion_tokens for turn in trace.turns] == [8, 3]
        assert [turn.finish_reason for turn in trace.turns] == ["length", "length"]
        assert_exact(trace, log)

    asyncio.run(run())


def test_a_context_that_is_full_is_an_error_after_which_an_agent_can_compact() -> None:
    async def run() -> None:
        log = Log(Texts(["Yes."]))
        async with opened(token_model(log, max_seq_len=60)) as (_, agent, trace):
            messages: list[dict[str, Any]] = [USER]

            async def fill() -> None:
                for _ in range(20):
                    await say(agent, messages)
                    messages.append(MORE)

            with pytest.raises(openai.BadRequestError) as refused:
                await fill()
            assert refused.value.code == "context_length_exceeded"
            assert "maximum context length is 60 tokens" in refused.value.message
            turns = len(trace.turns)
            await say(agent, [{"role": "user", "content": "A summary."}])
        assert len(trace.turns) == turns + 1
        assert [fork.kind for fork in trace.forks] == ["conversation"]
        assert_exact(trace, log)

    asyncio.run(run())


def test_a_first_prompt_that_is_too_long_fails_the_rollout_and_a_later_one_does_not() -> None:
    async def run(first: dict[str, Any], second: dict[str, Any]) -> str | None:
        async with opened(token_model(Texts(["Yes."]), max_prompt_len=30)) as (_, agent, _trace):
            await say(agent, [first])
            with pytest.raises(openai.BadRequestError) as refused:
                await say(agent, [second])
        return refused.value.code

    long = {"role": "user", "content": "Tea? " * 30}
    assert asyncio.run(run(USER, long)) == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):
        asyncio.run(run(long, USER))


def test_a_model_that_fails_is_the_rollouts_failure_whatever_the_agent_makes_of_it() -> None:
    async def run() -> None:
        texts = Texts(["Yes.", EngineError("the engine died"), "Yes."])
        async with opened(token_model(texts)) as (session, agent, trace):
            messages: list[dict[str, Any]] = [USER]
            await say(agent, messages)
            for _ in range(2):
                with pytest.raises(openai.InternalServerError) as refused:
                    await say(agent, [*messages, MORE])
                assert refused.value.status_code == 503
                assert "the engine died" in refused.value.message
            with pytest.raises(EngineError, match="the engine died"):
                await session.over()
            assert len(trace.turns) == 1

    with pytest.raises(EngineError, match="the engine died"):
        asyncio.run(run())


def test_a_limit_of_the_models_own_ends_the_rollout() -> None:
    dear = ScriptedModel([LimitReached(StopReason.MAX_COST)])

    async def run() -> None:
        async with opened(dear) as (session, agent, _):
            with pytest.raises(openai.APIStatusError) as refused:
                await say(agent, [USER])
            assert refused.value.status_code == 410
            assert await session.over() is StopReason.MAX_COST

    asyncio.run(run())


def test_a_request_whose_client_goes_away_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_way, "GRACE_SECONDS", 0.0)

    async def run() -> None:
        never = asyncio.Event()
        texts = Texts(["One.", never, "Two.", "Three."])
        log = Log(texts)
        async with opened(token_model(log)) as (session, agent, trace):
            messages: list[dict[str, Any]] = [USER]
            await say(agent, messages)
            asking = asyncio.ensure_future(say(agent, [*messages, MORE]))
            await texts.reached.wait()
            asking.cancel()
            await until(lambda: not session.in_flight)
            await say(agent, [*messages, MORE])
        assert len(trace.turns) == 2
        assert trace.forks == []
        assert_exact(trace, log)

    asyncio.run(run())


def test_a_half_read_stream_leaves_a_whole_turn() -> None:
    async def run() -> None:
        log = Log(Texts(["One. " * 40]))
        async with opened(token_model(log)) as (_, agent, trace):
            stream = await agent.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Tea?"}], stream=True
            )
            async for _ in stream:
                break
            await stream.close()
        assert len(trace.turns) == 1
        assert_exact(trace, log)

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["Yes.", EngineError("the engine died")])
def test_a_stream_shows_signs_of_life_until_its_answer_or_error(
    ends: str | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PING_SECONDS", 0.01)

    async def run() -> None:
        go = asyncio.Event()
        async with opened(token_model(Texts([go, ends]))) as (session, agent, _):
            asking = agent.chat.completions.with_raw_response.create(
                model="policy", messages=[{"role": "user", "content": "Tea?"}], stream=True
            )
            response = await asking
            lines = response.http_response.aiter_lines()
            assert (await anext(lines)).startswith(": ")
            go.set()
            rest = [line async for line in lines if line.startswith("data: ")]
            if isinstance(ends, str):
                assert rest[-1] == "data: [DONE]"
                assert any("Yes." in line for line in rest)
            else:
                (error,) = rest
                assert "the engine died" in error
                with pytest.raises(EngineError):
                    await session.over()

    if isinstance(ends, str):
        asyncio.run(run())
    else:
        with pytest.raises(EngineError):
            asyncio.run(run())


def test_a_clients_own_retry_gets_the_answer_that_is_under_way_or_was_given() -> None:
    async def run() -> None:
        go = asyncio.Event()
        texts = Texts([go, "One.", "Two."])
        log = Log(texts)
        async with opened(token_model(log)) as (session, agent, trace):
            hasty = client(session, timeout=0.2)
            with pytest.raises(openai.APITimeoutError):
                await say(hasty, [USER])
            retry = {"x-stainless-retry-count": "1"}
            asking = asyncio.ensure_future(say(agent, [USER], extra_headers=retry))
            await until(lambda: session.clients == 1)
            go.set()
            assert (await asking)["content"] == "One."
            assert (await say(agent, [USER], extra_headers=retry))["content"] == "One."
            assert (await say(agent, [USER]))["content"] == "Two."
            await hasty.close()
        assert len(trace.turns) == 2
        assert_exact(trace, log)

    asyncio.run(run())


def test_the_end_of_a_rollout_cancels_what_is_under_way() -> None:
    async def run() -> None:
        texts = Texts([asyncio.Event(), "Yes."])
        async with opened(token_model(texts)) as (_, agent, trace):
            asking = asyncio.ensure_future(say(agent, [USER]))
            await texts.reached.wait()
        with pytest.raises(openai.OpenAIError):
            await asking
        assert trace.turns == []
        assert trace.branches == []

    asyncio.run(run())


def test_the_time_of_the_model_is_not_the_environments() -> None:
    ends: list[float | None] = []

    class Clockwatcher:
        deadline: asyncio.Timeout

        async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
            with own_deadline():
                ends.append(self.deadline.when())
            ends.append(self.deadline.when())
            return Reply(Message("assistant", "Yes."))

    async def run() -> None:
        model = Clockwatcher()
        async with clocked(60.0) as model.deadline, opened(model) as (_, agent, _trace):
            await say(agent, [USER])

    asyncio.run(run())
    stopped, running = ends
    assert stopped is None
    assert running is not None


@pytest.mark.parametrize("fixed", [False, True])
def test_what_an_agent_asks_for_is_recorded_and_honoured_unless_sampling_is_fixed(
    fixed: bool,
) -> None:
    async def run() -> None:
        log = Log(Texts(["One. Observation: two."]))
        sampling = Sampling(32, 0.7, stop=("Never",), fixed=fixed)
        async with opened(token_model(log), sampling=sampling) as (_, agent, trace):
            answer = await say(
                agent,
                [USER],
                temperature=0.2,
                top_p=0.9,
                seed=5,
                max_tokens=20,
                stop=["Observation:"],
                response_format={"type": "json_object"},
            )
            await say(agent, [MORE], temperature=0.2)
        assert answer["content"] == "One."
        asked = log.entries[0][1]
        assert asked.stop == ("Never", "Observation:")
        wanted = (20, 0.2, 0.9, 5)
        given = (asked.max_tokens, asked.temperature, asked.top_p, asked.seed)
        assert given == ((32, 0.7, 1.0, given[3]) if fixed else wanted)
        assert (asked.seed == 5) is not fixed
        assert trace.info["asked"] == {
            "temperature": [0.2],
            "top_p": [0.9],
            "seed": [5],
            "max_tokens": [20],
            "stop": [["Observation:"]],
            "response_format": [{"type": "json_object"}],
        }

    asyncio.run(run())


def test_an_answer_that_ends_at_a_stop_text_is_cut_behind_the_token_that_completes_it() -> None:
    async def run() -> None:
        log = Log(Texts(["One. Observation: two.", "Three."]))
        async with opened(token_model(log)) as (_, agent, trace):
            messages: list[dict[str, Any]] = [USER]
            await say(agent, messages, stop="Observation:")
            await say(agent, [*messages, MORE])
        (branch,) = trace.branches
        first = [i for i, turn in enumerate(branch.turn_index) if turn == 0]
        ids = [branch.token_ids[i] for i in first if branch.loss_mask[i]]
        assert RENDERER.decode(ids).endswith("Observation:")
        assert "Observation:" not in RENDERER.decode(ids[:-1])
        assert log.entries[0][2].token_ids[: len(ids)] == ids
        assert RENDERER.closer_id in log.entries[1][0][len(first) :]

    asyncio.run(run())


def test_no_tools_wanted_means_that_a_call_is_text() -> None:
    async def run() -> None:
        log = Log(Texts([CALL]))
        async with opened(token_model(log)) as (_, agent, trace):
            answer = await say(agent, [USER], tools=[TOOL], tool_choice="none")
        assert "tool_calls" not in answer
        assert "look" in answer["content"]
        assert "look" in RENDERER.decode(log.entries[0][0])
        assert trace.tool_events == []

    asyncio.run(run())


def test_a_malformed_call_is_text_for_the_agent_and_an_event_in_the_trace() -> None:
    async def run() -> None:
        texts = Texts(['<tool_call>\n{"name": "look", "argu\n</tool_call>'])
        async with opened(token_model(texts)) as (_, agent, trace):
            answer = await say(agent, [USER], tools=[TOOL])
        assert "tool_calls" not in answer
        assert answer["content"] == '{"name": "look", "argu'
        assert [(event.turn, event.kind) for event in trace.tool_events] == [(0, "malformed")]

    asyncio.run(run())
