"""v1 packages whose Env plays the user of one agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.bridges.verifiers.from_verifiers import from_verifiers
from vf.runtime.errors import RubricError
from vf.traces.trace import StopReason

Late("verifiers.v1")  # skips these tests without it
pytestmark = pytest.mark.usefixtures("their_envs")


def play(script: list[str], opening: str = "user", **limits: Any) -> vf.Trace:
    environment = from_verifiers("their-user", opening=opening)
    for name, value in limits.items():
        setattr(environment, name, value)
    task = next(iter(environment.tasks("train")))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))


def test_a_user_opens_the_conversation_and_answers() -> None:
    trace = play(["2", "3", "4"])
    assert [(message.role, message.content) for message in trace.messages] == [
        ("system", "Count on."),
        ("user", "1, and then?"),
        ("assistant", "2"),
        ("user", "2, and then?"),
        ("assistant", "3"),
        ("user", "3, and then?"),
        ("assistant", "4"),
    ]
    assert trace.stop_reason is StopReason.TERMINATED
    assert trace.info["verifiers"] == {"stop_condition": "user_closed"}
    assert trace.score is not None
    assert trace.score.parts == {"counted": 1.0, "polite": 0.0}
    assert trace.reward == 0.5


def test_a_task_with_a_prompt_is_answered_before_the_user_speaks() -> None:
    trace = play(["please", "2", "3", "4"], opening="task")
    assert [message.content for message in trace.messages[:4]] == [
        "Count on.",
        "Say please.",
        "please",
        "1, and then?",
    ]
    assert trace.score is not None
    assert trace.score.parts == {"counted": 0.0, "polite": 1.0}


def test_a_limit_ends_the_users_part_too() -> None:
    trace = play(["2", "3", "4"], max_turns=2)
    assert trace.stop_reason is StopReason.MAX_TURNS
    assert trace.score is not None
    assert trace.score.parts == {"counted": 0.0, "polite": 0.0}


def test_a_user_that_fails_earns_no_reward() -> None:
    trace = play(["quit"])
    assert trace.reward is None
    assert trace.error is not None
    assert "the player has left" in trace.error.message


def test_a_saved_trace_is_not_scored_without_the_user() -> None:
    trace = play(["2", "3", "4"])
    with pytest.raises(RubricError, match="live rollout"):
        asyncio.run(from_verifiers("their-user").rubric.score(trace))
