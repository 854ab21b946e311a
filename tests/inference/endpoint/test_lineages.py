"""Which requests extend a conversation, and which begin another, and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pytest

from tests.inference.endpoint.rollout_talk import (
    CALL,
    TOOL,
    Log,
    Texts,
    assert_exact,
    opened,
    say,
    token_model,
)
from vf.inference.endpoint import lineages
from vf.inference.endpoint.lineages import same
from vf.inference.models.scripted_model import ScriptedModel
from vf.traces.messages import Message
from vf.traces.trace import Branch, Trace

Messages = list[dict[str, Any]]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Tea?"}
MORE = {"role": "user", "content": "More."}


async def talk(agent: openai.AsyncOpenAI) -> Messages:
    """Hold a conversation of two answers; return it with a third question."""
    messages: Messages = [SYSTEM, USER]
    await say(agent, messages)
    messages.append(MORE)
    await say(agent, messages)
    return [*messages, MORE]


def rolled(
    work: Callable[[openai.AsyncOpenAI], Coroutine[Any, Any, Any]], *texts: str
) -> tuple[Trace, Log]:
    """Let an agent work; check that the trace equals the log."""

    async def run() -> tuple[Trace, Log]:
        log = Log(Texts(texts or [f"Answer {place}." for place in range(20)]))
        async with opened(token_model(log)) as (_, agent, trace):
            await work(agent)
        return trace, log

    trace, log = asyncio.run(run())
    assert_exact(trace, log)
    return trace, log


def test_what_an_agent_lays_into_its_models_mouth_is_context() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages = await talk(agent)
        messages += [{"role": "assistant", "content": "I gave up."}, MORE]
        await say(agent, messages)

    trace, _ = rolled(work)
    assert len(trace.branches) == 1
    (only,) = trace.lineages
    assert only.turn_of == {2: 0, 4: 1, 8: 2}
    assert [message.content for message in trace.answers] == [f"Answer {n}." for n in range(3)]


def sampled(branch: Branch) -> int:
    return sum(branch.loss_mask)


def change_content(messages: Messages) -> None:
    messages[2] = {"role": "assistant", "content": "I said something else."}


def drop_turn(messages: Messages) -> None:
    del messages[2:4]


def change_system(messages: Messages) -> None:
    messages[0] = {"role": "system", "content": "You are someone else."}


def keep_system_alone(messages: Messages) -> None:
    messages[1:] = [{"role": "user", "content": "A summary."}]


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (change_content, "rewritten", "message 2 differs: assistant 'Answer 0.' became"),
        (drop_turn, "rewritten", "message 2 differs: assistant 'Answer 0.' became assistant"),
        (change_system, "rewritten", "message 0 differs: system 'Be brief.' became system"),
        (keep_system_alone, "conversation", "message 1 differs: user 'Tea?' became user 'A summ"),
    ],
)
def test_what_does_not_extend_begins_a_lineage_that_says_why(
    change: Callable[[Messages], None], kind: str, reason: str
) -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages = await talk(agent)
        change(messages)
        await say(agent, messages)
        await say(agent, [*messages, MORE])

    trace, _ = rolled(work)
    (fork,) = trace.forks
    assert (fork.turn, fork.kind) == (2, kind)
    assert reason in fork.reason
    assert [lineage.branches for lineage in trace.lineages] == [[0], [1]]
    assert [lineage.turns for lineage in trace.lineages] == [[0, 1], [2, 3]]
    assert [lineage.parent for lineage in trace.lineages] == [None, None]
    assert trace.messages == trace.lineages[1].messages
    assert trace.lineages[1].prompt_messages == trace.prompt_messages


def test_other_tools_begin_a_lineage() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages = await talk(agent)
        await say(agent, messages, tools=[TOOL])

    trace, _ = rolled(work)
    (fork,) = trace.forks
    assert fork.kind == "tools"
    assert fork.reason == "the tools differ: added look"
    assert [lineage.tools for lineage in trace.lineages] == [[], [TOOL]]


def test_sub_agents_that_take_turns_have_a_branch_each() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        talks: list[Messages] = [
            [{"role": "system", "content": f"Agent {number}."}, USER] for number in range(3)
        ]
        for _ in range(4):
            for messages in talks:
                await say(agent, messages)
                messages.append(MORE)

    trace, _ = rolled(work)
    assert [lineage.branches for lineage in trace.lineages] == [[0], [1], [2]]
    assert [lineage.turns for lineage in trace.lineages] == [
        [0, 3, 6, 9],
        [1, 4, 7, 10],
        [2, 5, 8, 11],
    ]
    assert [(fork.turn, fork.kind) for fork in trace.forks] == [
        (1, "conversation"),
        (2, "conversation"),
    ]


def test_asking_again_from_an_earlier_answer_copies_its_tokens_as_context() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages = await talk(agent)
        await say(agent, messages[:4])
        await say(agent, messages)

    trace, _ = rolled(work)
    (fork,) = trace.forks
    assert (fork.turn, fork.kind) == (2, "parallel")
    first, second = trace.branches
    assert [lineage.turns for lineage in trace.lineages] == [[0, 1, 3], [2]]
    assert trace.lineages[1].parent == 0
    shared = second.loss_mask.index(1)
    assert second.token_ids[:shared] == first.token_ids[:shared]
    assert sampled(second) == trace.turns[2].completion_tokens
    assert trace.lineages[1].messages[:4] == trace.lineages[0].messages[:4]


def test_parallel_requests_from_one_head_share_it_and_carry_loss_once() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages: Messages = [SYSTEM, USER]
        await say(agent, messages)
        await asyncio.gather(*(say(agent, [*messages, MORE]) for _ in range(3)))

    trace, log = rolled(work)
    assert len(trace.branches) == 3
    assert {fork.kind for fork in trace.forks} == {"parallel"}
    assert sum(map(sampled, trace.branches)) == trace.completion_tokens
    assert len({tuple(prompt) for prompt, _, _ in log.entries[1:]}) == 1


def test_several_answers_to_one_request_are_lineages_that_can_continue() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        answer = await agent.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "Tea?"}], n=3
        )
        texts = [choice.message.content for choice in answer.choices]
        assert len({*texts}) == 3
        await say(agent, [USER, {"role": "assistant", "content": texts[1]}, MORE])

    trace, log = rolled(work)
    assert [lineage.turns for lineage in trace.lineages] == [[0], [1, 3], [2]]
    assert [(fork.turn, fork.kind) for fork in trace.forks] == [(1, "parallel"), (2, "parallel")]
    assert len({sampling.seed for _, sampling, _ in log.entries}) == 4


def test_calls_may_come_back_spaced_otherwise_and_reasoning_not_at_all() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages: Messages = [USER]
        answer = await say(agent, messages, tools=[TOOL])
        assert answer["reasoning_content"] == "Hm."
        (call,) = answer["tool_calls"]
        arguments = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
        function = {"name": "look", "arguments": arguments}
        messages[1] = {
            "role": "assistant",
            "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
        }
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "green"})
        await say(agent, messages, tools=[TOOL])

    trace, _ = rolled(work, "<think>Hm.</think>" + CALL, "Green.")
    assert len(trace.branches) == 1
    assert trace.messages[1].reasoning == "Hm."


def test_calls_may_come_back_with_numbers_as_javascript_writes_them() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages: Messages = [USER]
        (call,) = (await say(agent, messages, tools=[TOOL]))["tool_calls"]
        call["function"]["arguments"] = '{"count":2,"id":1234567890123456800}'
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "green"})
        await say(agent, messages, tools=[TOOL])

    numbers = '{"count": 2.0, "id": 1234567890123456789}'
    trace, _ = rolled(work, CALL.replace('{"what": "tea"}', numbers), "Green.")
    assert trace.forks == []
    assert trace.messages[1].tool_calls[0].arguments == numbers


def test_an_answer_with_nothing_after_it_is_continued_where_the_template_can() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages = await talk(agent)
        await say(agent, messages[:5])

    trace, _ = rolled(work)
    assert trace.forks == []
    assert len(trace.branches) == 1


def test_models_without_tokens_have_lineages_too() -> None:
    async def run() -> Trace:
        model = ScriptedModel(["One.", "Two.", "Three."])
        async with opened(model) as (_, agent, trace):
            messages = await talk(agent)
            await say(agent, [SYSTEM, MORE])
        assert messages[-2]["content"] == "Two."
        return trace

    trace = asyncio.run(run())
    assert trace.branches == []
    assert [lineage.turns for lineage in trace.lineages] == [[0, 1], [2]]
    assert trace.messages[-1] == Message("assistant", "Three.")


def test_traces_of_several_lineages_survive_json() -> None:
    async def work(agent: openai.AsyncOpenAI) -> None:
        messages = await talk(agent)
        await say(agent, messages[:4])

    trace, _ = rolled(work)
    assert Trace.from_json(trace.to_json()) == trace


def test_many_lineages_of_long_conversations_are_not_compared_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many times as there are lineages, the event loop would wait for it."""
    compared = []

    def counted(*args: Any) -> bool:
        compared.append(args)
        return same(*args)

    monkeypatch.setattr(lineages, "same", counted)

    async def run() -> Trace:
        async with opened(token_model(Texts(["Yes."]))) as (_, agent, trace):
            for place in range(6):
                tool = json.loads(json.dumps(TOOL).replace("look", f"look{place % 2}"))
                await say(agent, [USER] * 300, tools=[tool])
        return trace

    trace = asyncio.run(run())
    assert [fork.kind for fork in trace.forks] == ["tools", *["parallel"] * 4]
    assert [lineage.parent for lineage in trace.lineages] == [None, None, 0, 1, 0, 1]
    assert len(compared) < 300


@pytest.mark.parametrize("put_back", ["", "END"])
def test_an_agent_may_put_back_the_stop_text_that_ended_an_answer(put_back: str) -> None:
    async def run() -> Trace:
        async with opened(token_model(Texts(["Green.END"]))) as (_, agent, trace):
            messages: Messages = [SYSTEM, USER]
            for _ in range(3):
                assert (await say(agent, messages, stop=["END"]))["content"] == "Green."
                messages[-1]["content"] += put_back
                messages.append(MORE)
        return trace

    trace = asyncio.run(run())
    assert (len(trace.turns), len(trace.branches), trace.forks) == (3, 1, [])
