"""The README's code runs, straight from the text, and so does the shortest environment."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments import registry
from vf.evaluation.evaluate import take_tasks
from vf.inference.models.scripted_model import Line
from vf.trainer.settings.load_config import parse_config

ROOT = Path(__file__).parents[1]
GUIDE = "docs/guide-authoring.md"
WORDS = 900  # code included; what does not fit belongs to docs/


def blocks(kind: str, page: str = "README.md") -> list[str]:
    return re.findall(
        rf"^```{kind}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )


PLAIN, WITH_TOOL = blocks("python", GUIDE)[0], blocks("python")[0]


def run(*code: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for block in code:
        exec(block, scope)
    return scope


@pytest.fixture(autouse=True)
def _own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_python_blocks_run() -> None:
    assert len(blocks("python")) == 3
    agent = run(*blocks("python"))["agent"]
    (task,) = agent.tasks("train")
    trace = asyncio.run(vf.rollout(agent, task, vf.ScriptedModel(["Answer: 2"])))
    assert trace.reward == 1.0
    assert trace.info["output"] == "Answer: 2"


def test_a_complete_environment_is_15_lines_and_one_with_a_tool_25() -> None:
    assert len(PLAIN.splitlines()) <= 15
    assert len(WITH_TOOL.splitlines()) <= 25
    assert max(map(len, (PLAIN + WITH_TOOL).splitlines())) <= 100


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= WORDS


@pytest.mark.parametrize(
    ("code", "id", "script"),
    [
        (PLAIN, "products", lambda task: [f"Answer: {task.answer}"]),
        (WITH_TOOL, "warehouse", lambda task: [{"count": {"item": task.prompt[12:-1]}}]),
    ],
)
def test_both_pay_for_the_answer_alone(
    code: str, id: str, script: Callable[[vf.Task], list[Line]]
) -> None:
    run(code)
    environment = vf.make(id)
    for task in take_tasks(environment, "eval", 5):
        lines = script(task)
        right = [*lines, f"Answer: {task.answer}"]
        wrong = [*lines[:-1], f"Answer: {task.answer + 1}"]
        traces = [
            asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(s))) for s in (right, wrong)
        ]
        assert [trace.reward for trace in traces] == [1.0, 0.0]
    if id == "warehouse":
        assert traces[0].messages[-2].content == str(task.answer)


@pytest.mark.parametrize(("code", "id"), [(PLAIN, "products"), (WITH_TOOL, "warehouse")])
def test_neither_can_be_gamed(code: str, id: str) -> None:
    run(code)
    found = asyncio.run(vf.validate(vf.make(id), again=vf.make(id)))
    assert {f.check for f in found.findings if f.status == "skipped"} == {"oracle", "spread"}
    assert {f.status for f in found.findings} == {"ok", "skipped"}


def test_the_toml_is_a_valid_config() -> None:
    (text,) = blocks("toml")
    assert parse_config(tomllib.loads(text))[0].env[0].id == "calculator"
