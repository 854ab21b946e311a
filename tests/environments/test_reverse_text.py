"""The bundled reverse-text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf
from vf.environments.bundled.reverse_text import ReverseText

TASK = vf.Task("baku", "Write this backwards, and nothing else: baku", answer="ukab")


def run(reply: Any, **kwargs: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(ReverseText(**kwargs), TASK, vf.ScriptedModel([reply])))


@pytest.mark.parametrize(
    ("reply", "reward"),
    [("ukab", 1.0), (" ukab\n", 1.0), ("baku", 0.0), ("", 0.0), ("UKAB", 0.0), ("It is ukab", 0.0)],
)
def test_only_the_text_backwards_earns_the_reward(reply: str, reward: float) -> None:
    trace = run(reply)
    assert trace.reward == reward
    assert trace.stop_reason is vf.StopReason.TERMINATED


def test_partial_credit_pays_by_similarity() -> None:
    near, far = run("ukaa", partial_credit=True), run("zzzz", partial_credit=True)
    assert near.reward == 0.75
    assert far.reward == 0.0
    assert run("ukab", partial_credit=True).reward == 1.0


def test_calling_a_tool_that_is_not_there_uses_up_the_only_turn() -> None:
    trace = run({"reverse": {"text": "baku"}})
    assert trace.stop_reason is vf.StopReason.MAX_TURNS
    assert trace.reward == 0.0
    assert [event.kind for event in trace.tool_events] == ["unknown_tool"]


def test_tasks_are_answered_right() -> None:
    for task in ReverseText(min_letters=5, max_letters=7).tasks("eval"):
        assert 5 <= len(task.id) <= 7
        assert list(task.answer) == list(reversed(task.id))
        assert str(task.prompt).endswith(f": {task.id}")


@pytest.mark.parametrize("kwargs", [{"min_letters": 3}, {"max_letters": 3}])
def test_arguments_out_of_range_are_config_errors(kwargs: Any) -> None:
    with pytest.raises(vf.ConfigError, match=f"reverse-text: .*{next(iter(kwargs))}"):
        ReverseText(**kwargs)
