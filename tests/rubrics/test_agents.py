"""What an agent said in any of its conversations counts; what is judged is its answer."""

from __future__ import annotations

import asyncio

import pytest

import vf
from tests.rubrics.scripted_judge import judge_at, saying, verdicts
from tests.rubrics.traces import gate_of, penalty_of
from tests.traces.agents import delegated
from vf.rubrics import penalties
from vf.rubrics.penalties.rules import keeps_policy
from vf.testing import FakeServer


@pytest.mark.parametrize(
    ("penalty", "value"),
    [
        (penalties.verbosity(free=11, scale=40), 0.5),  # 31 tokens in all, 24 of them the helper's
        (penalties.extra_turns(free=3, scale=4), 0.5),
        (penalties.tool_cost({"search": 1}, budget=2), 0.5),
        (penalties.extra_tool_calls(free=1, scale=2), 0.5),
        (penalties.forbidden_calls({"search": None}), 1.0),
        (penalties.bad_format("Answer.*", messages="all"), 3 / 5),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_helper_costs_what_the_agent_itself_would(penalty: vf.Penalty, value: float) -> None:
    assert penalty_of(penalty, delegated()) == pytest.approx(value)


def test_a_helper_cannot_repeat_itself_for_nothing() -> None:
    trace = delegated()
    assert penalty_of(penalties.repetition(n=3, free=0.0), trace) > 0.5
    trace.lineages = []  # the last conversation alone
    assert penalty_of(penalties.repetition(n=3, free=0.0), trace) == 0.0


def test_a_gate_sees_the_helper() -> None:
    assert gate_of(keeps_policy({"search": None}), delegated()) is False


def test_the_answers_are_those_of_all_conversations_in_order_of_the_turns() -> None:
    trace = delegated()
    assert [message.content.split()[0] for message in trace.answers] == (
        ["I", "word", "The", "Answer:", "Answer:"]
    )
    assert trace.reply == "Answer: B"
    trace.lineages = []
    assert trace.answers == [trace.messages[-1]]


def test_the_question_of_a_judge_holds_no_word_of_the_judged_model() -> None:
    trace = delegated()

    with FakeServer(saying(*verdicts("right"))) as server:
        asyncio.run(judge_at(server.base_url)(trace))
    shown = server.bodies[0]["messages"][1]["content"]
    assert "Which river?" in shown
    assert "Answer: B" in shown
    assert "I delegate." not in shown
