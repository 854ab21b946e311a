"""Agents under a name, in a file and with their tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments import registry
from vf.environments.environment import Split

AGENT = """
import vf

@vf.agent
async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
    return None

"""
MADE = "vf.AgentEnvironment(solve, tasks=[vf.Task('t', '2 + 2?')])"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_registered", {})
    yield
    sys.modules.pop("my_agent", None)


@vf.agent
async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
    return None


def tasks_of(source: Any, split: Split = "eval") -> list[vf.Task]:
    return list(vf.AgentEnvironment(solve, tasks=source).tasks(split))


def test_an_agent_is_registered_as_the_object_that_it_is() -> None:
    environment = vf.AgentEnvironment(solve, tasks=[])
    vf.register("my-agent", environment)
    vf.register("my-agent", environment)
    made = vf.make("my-agent")
    assert made is not environment
    assert isinstance(made, vf.AgentEnvironment)
    assert (made.id, environment.id) == ("my-agent", "")
    with pytest.raises(vf.ConfigError, match="It takes: no arguments"):
        vf.make("my-agent", size=3)
    with pytest.raises(vf.ConfigError, match="registered already"):
        vf.register("my-agent", vf.AgentEnvironment(solve, tasks=[]))


@pytest.mark.parametrize(
    "line",
    [
        f"vf.register('my-agent', {MADE})",
        f"environment = {MADE}",
        f"environment = {MADE}\nvf.register('my-agent', environment)",
        f"def make():\n    return {MADE}\nvf.register('my-agent', make)",
    ],
)
def test_a_file_with_an_agent_is_enough(line: str) -> None:
    Path("my_agent.py").write_text(AGENT + line)
    made = vf.make("./my_agent.py")
    assert isinstance(made, vf.AgentEnvironment)
    assert made.id == "my_agent"


TASKS = [vf.Task("a", "A?", answer=1, info={"n": 1}), vf.Task("b", "B?")]
ROWS = [{"id": "a", "prompt": "A?", "answer": 1, "info": {"n": 1}}, {"id": "b", "prompt": "B?"}]


@pytest.mark.parametrize(
    "source",
    [
        {"eval": TASKS},
        {"eval": ROWS},
        lambda split: TASKS if split == "eval" else [],
        lambda split: iter(ROWS),
        {"eval": "tasks.jsonl"},
        {"eval": lambda: ROWS},
    ],
)
def test_tasks_are_tasks_rows_files_and_functions(source: Any) -> None:
    Path("tasks.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    assert tasks_of(source) == TASKS


def test_one_source_is_split_and_a_row_without_an_id_gets_one() -> None:
    rows = [{"prompt": f"What is {n} + 1?"} for n in range(200)]
    train, held_out = tasks_of(rows, "train"), tasks_of(rows, "eval")
    assert len(train) + len(held_out) == 200
    assert 5 < len(held_out) < 50
    assert len({task.id for task in train + held_out}) == 200


def test_a_row_without_a_prompt_is_named() -> None:
    with pytest.raises(vf.ConfigError, match=r"row 1: the field 'prompt' \(prompt\) is missing"):
        tasks_of({"eval": [{"question": "A?"}]})
