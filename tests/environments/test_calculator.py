"""The bundled calculator."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import pytest

import vf
from vf.environments.bundled.calculator import Calculator, final_answer
from vf.evaluation.scripts import oracle_of
from vf.runtime.errors import ConfigError

TASK = vf.Task("2 + 3", "Compute 2 + 3.", answer=5, info={"operations": 1})
RIGHT_CALL = {"calculate": {"op": "+", "a": 2, "b": 3}}


def run(*script: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(Calculator(), TASK, vf.ScriptedModel(script)))


def test_the_tool_and_the_right_answer_earn_everything() -> None:
    trace = run(RIGHT_CALL, "Answer: 5")
    assert [m.content for m in trace.messages if m.role == "tool"] == ["5"]
    assert trace.reward == 1.0
    assert trace.stop_reason is vf.StopReason.TERMINATED


@pytest.mark.parametrize(
    "reply", ["Answer: 6", "5", "", "Answer: -5", "Answer: 1 Answer: 5", "Answer: 5 Answer: 5"]
)
def test_a_wrong_missing_or_hedged_answer_earns_nothing(reply: str) -> None:
    assert run(RIGHT_CALL, reply).reward == 0.0


def test_errors_and_superfluous_calls_cost_a_share_but_never_more_than_half() -> None:
    wrong_call = {"calculate": {"op": "/", "a": 2, "b": 3}}
    one_extra = run(RIGHT_CALL, RIGHT_CALL, "Answer: 5")
    one_wrong = run(wrong_call, RIGHT_CALL, "Answer: 5")
    all_wrong = run(*[wrong_call] * 5, "Answer: 5")
    assert one_extra.reward == pytest.approx(1 - 0.3 / 4)
    assert one_wrong.reward == pytest.approx(1 - 0.3 / 4 - 0.2 / 2)
    assert all_wrong.reward == pytest.approx(0.5)
    assert run(wrong_call, "Answer: 6").reward == 0.0


def test_whether_it_answered_is_measured_and_never_rewarded() -> None:
    trace = run("Answer: 6")
    assert trace.score is not None
    assert trace.score.metrics == {"answered": 1.0}
    assert trace.reward == 0.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 12", 12),
        ("So it is.\nAnswer:-12.", -12),
        ("Answer: 12, as computed", 12),
        ("Answer: 1.5", None),
        ("Answer: 1,234", None),
        ("Answer: twelve", None),
        ("Answer: 1\nAnswer: 2", None),
        ("Answer: 12 or 13", None),
        ("2 calls were enough. Answer: 12", 12),
        ("Answer: " + "9" * 10_000, None),
    ],
)
def test_only_one_whole_number_is_an_answer(text: str, answer: int | None) -> None:
    assert final_answer(text) == answer


def test_answers_are_what_python_makes_of_the_expression() -> None:
    environment = Calculator(max_operations=4, num_train=500)
    for task in environment.tasks("train"):
        assert eval(task.id) == task.answer
        assert task.prompt == f"Compute {task.id}."
        assert sum(task.id.count(op) for op in "+-*") == task.info["operations"]


@pytest.mark.parametrize("op", ["+", "-", "*"])
def test_the_tool_computes(op: Any) -> None:
    assert Calculator().calculate(op, -7, 3) == eval(f"-7 {op} 3")


@pytest.mark.parametrize(
    "kwargs",
    [
        {"max_operations": 0},
        {"max_operations": 5},
        {"max_operand": 9},
    ],
)
def test_arguments_out_of_range_are_config_errors(kwargs: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"calculator: .*{next(iter(kwargs))}"):
        Calculator(**kwargs)


def test_the_oracle_works_it_out_with_the_tool() -> None:
    environment = vf.make("calculator", max_operations=3)
    for task in islice(environment.tasks("train"), 20):
        script = oracle_of(environment, task)
        assert isinstance(script, list)
        assert len(script) == task.info["operations"] + 1
        assert script[-1] == f"Answer: {task.answer}"
