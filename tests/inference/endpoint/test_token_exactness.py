"""What an agent's requests sampled is in the trace, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.inference.endpoint.rollout_talk import (
    CALL,
    TOOL,
    Engine,
    Log,
    Texts,
    assert_exact,
    opened,
    say,
    token_model,
)
from tests.inference.tiny_serving import load_model, running_engine
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling
from vf.traces.trace import Trace

WILD = 30.0  # a temperature at which whatever the model has learnt hardly matters


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with running_engine(load_model(), max_seq_len=2048) as running:
        yield running


async def converse(engine: EmbeddedEngine, turns: int, seed: int) -> tuple[Trace, Log]:
    log = Log(Engine(engine))
    settings: dict[str, Any] = {"sampling": Sampling(12, WILD), "seed": seed}
    async with opened(token_model(log), **settings) as (_, agent, trace):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Talk."}]
        for turn in range(turns):
            await say(agent, messages, stream=False)
            messages.append({"role": "user", "content": f"Go on, {turn}."})
    return trace, log


def test_many_turns_of_a_real_model_are_one_branch_that_equals_the_engines_log(
    engine: EmbeddedEngine,
) -> None:
    trace, log = asyncio.run(converse(engine, turns=12, seed=1))
    assert len(trace.branches) == 1
    assert trace.forks == []
    assert trace.lineages == []
    assert len(trace.turns) == 12
    assert [message.role for message in trace.messages] == ["user", "assistant"] * 12
    assert_exact(trace, log)


@pytest.mark.slow
@pytest.mark.gate
def test_equal_seeds_give_equal_rollouts(engine: EmbeddedEngine) -> None:
    traces = [asyncio.run(converse(engine, turns=3, seed=seed))[0] for seed in (1, 1, 2)]
    ids = [trace.branches[0].token_ids for trace in traces]
    assert ids[0] == ids[1] != ids[2]


def test_calls_and_their_results_extend_the_branch() -> None:
    async def run() -> None:
        log = Log(Texts([CALL, CALL + CALL, "Done."]))
        async with opened(token_model(log)) as (_, agent, trace):
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": "Look."},
                {"role": "user", "content": "Tea?"},
            ]
            while calls := (await say(agent, messages, tools=[TOOL])).get("tool_calls"):
                for call in calls:
                    answer = {"role": "tool", "tool_call_id": call["id"], "content": "green"}
                    messages.append(answer)
        assert len(trace.branches) == 1
        assert len(trace.turns) == 3
        assert [(event.turn, event.kind) for event in trace.tool_events] == [
            (0, "ok"),
            (1, "ok"),
            (1, "ok"),
        ]
        assert trace.tools == [TOOL]
        assert trace.prompt_messages == 2
        assert trace.reply == "Done."
        assert_exact(trace, log)

    asyncio.run(run())
