"""The learning benchmark is fair: TRL's episodes are answered and paid as ours are."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learning_report import Curve, summary
from learning_trl import TrlCalculator, as_trace

import vf
from vf.environments.bundled.calculator import Calculator
from vf.inference.models.scripted_model import Line

TASK = vf.Task("(2 + 3) * 4", "Compute (2 + 3) * 4.", answer=20, info={"operations": 2})
ADD: Line = {"calculate": {"op": "+", "a": 2, "b": 3}}
TIMES: Line = {"calculate": {"op": "*", "a": 5, "b": 4}}
TEXT_FOR_NUMBER: Line = {"calculate": {"op": "+", "a": "2", "b": 3}}
NO_SUCH_OPERATION: Line = {"calculate": {"op": "/", "a": 2, "b": 3}}
MISSING: Line = {"calculate": {"op": "+", "a": 2}}
SUPERFLUOUS: Line = {"calculate": {"op": "+", "a": 2, "b": 3, "c": 4}}
NO_SUCH_TOOL: Line = {"compute": {"op": "+", "a": 2, "b": 3}}
EPISODES: dict[str, list[Line]] = {
    "solved": [ADD, TIMES, "Answer: 20"],
    "extra calls": [ADD, ADD, ADD, TIMES, "Answer: 20"],
    "wrong arguments": [TEXT_FOR_NUMBER, ADD, TIMES, "Answer: 20"],
    "unknown tool": [NO_SUCH_TOOL, ADD, TIMES, "Answer: 20"],
    "wrong": [ADD, "Answer: 21"],
    "no answer": [ADD, TIMES, "20"],
    "out of turns": [ADD] * 6,
}


def our_trace(lines: list[Line]) -> vf.Trace:
    return asyncio.run(vf.rollout(Calculator(), TASK, vf.ScriptedModel(lines)))


def completion_of(trace: vf.Trace) -> list[dict[str, Any]]:
    """Return what TRL would hand to a reward function for this episode."""
    completion = []
    for message in trace.messages[trace.prompt_messages :]:
        raw = message.to_openai()
        for call in raw.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        completion.append(raw)
    return completion


@pytest.mark.parametrize("name", EPISODES)
def test_an_episode_of_trls_is_paid_as_ours(name: str) -> None:
    ours = our_trace(EPISODES[name])
    theirs = asyncio.run(Calculator().rubric.score(as_trace(TASK, completion_of(ours))))
    assert ours.score is not None
    assert replace(ours.score, turn_costs={}) == replace(theirs, turn_costs={})  # TRL has no turns
    assert ours.reward is not None
    assert (ours.reward > 0) == ("Answer: 20" in EPISODES[name])


@pytest.mark.parametrize(
    "line", [ADD, TIMES, TEXT_FOR_NUMBER, NO_SUCH_OPERATION, MISSING, SUPERFLUOUS], ids=str
)
def test_the_tool_answers_trl_as_it_does_us(line: dict[str, Any]) -> None:
    ours = [m.content for m in our_trace([line, "Answer: 20"]).messages if m.role == "tool"]
    assert [str(TrlCalculator().calculate(**line["calculate"]))] == ours


def curve(name: str, seconds: list[float], held_out: list[float]) -> Curve:
    found = Curve(name, 1.0, held_out=held_out)
    for spent in seconds:
        found.add([spent], [0.5], Path("adapter"))
    return found


def test_the_ratio_is_of_the_seconds_to_the_reward() -> None:
    ours = curve("ours", [10.0, 10.0], [0.4, 0.6, 1.0])
    trl = curve("trl", [20.0, 20.0], [0.4, 0.7, 0.9])
    assert ours.seconds_to(0.8) == pytest.approx(15.0)
    assert trl.seconds_to(0.8) == pytest.approx(30.0)
    found = summary(ours, trl, 128, 0.8)
    assert found["ratio"] == 2.0
    assert found["ratio_of"] == "seconds to a held-out reward of 0.8"


def test_who_never_gets_there_is_named_and_all_rollouts_compared() -> None:
    ours = curve("ours", [10.0, 10.0], [0.4, 0.6, 1.0])
    trl = curve("trl", [20.0, 30.0], [0.4, 0.7, 0.7])
    found = summary(ours, trl, 128, 0.8)
    assert found["seconds_to_reward"] == {"ours": 15.0, "trl": None}
    assert found["ratio"] == 2.5
    assert "TRL GRPOTrainer never reached 0.8" in found["ratio_of"]
