"""The bundled tasks: what each must have, and that no two are the same."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import vf
import vf.bridges.harbor
from vf.bridges.harbor.terminal_tasks import terminal_tasks
from vf.evaluation.scripts import oracle_of

BUNDLED = Path(vf.bridges.harbor.__file__).parent / "bundled"
FOLDERS = sorted(path.parent for path in BUNDLED.glob("*/task.toml"))
LEVELS, TOPICS = ("easy", "medium", "hard"), ("shell", "git", "data", "services", "bugs")


def about(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "task.toml").read_text())


def test_levels_topics_and_splits_are_balanced() -> None:
    found = [about(folder)["metadata"] for folder in FOLDERS]
    kinds = Counter((task["category"], task["difficulty"]) for task in found)
    assert kinds == {(topic, level): 2 for topic in TOPICS for level in LEVELS}
    assert Counter(task["split"] for task in found) == {"train": 20, "held-out": 10}
    held_out = [task for task in found if task["split"] == "held-out"]
    assert Counter(task["category"] for task in held_out) == dict.fromkeys(TOPICS, 2)
    assert {task["difficulty"] for task in held_out} == set(LEVELS)


def test_no_two_tasks_share_a_solution() -> None:
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in (folder / "solution").iterdir():
            text = path.read_text()
            if re.fullmatch(r"#!/bin/sh\nset -e\n(cp \S+( \S+)*\n|chmod \S+ \S+\n)*", text):
                continue  # only copies the files beside it
            assert found.setdefault(text, folder.name) == folder.name
    assert set(found.values()) == {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_task_is_whole_and_hides_what_it_must(folder: Path) -> None:
    told = about(folder)
    assert told["task"]["name"] == f"vf/{folder.name}"
    assert told["environment"]["network_mode"] == "no-network"
    # What the agent's container was made into is never where the verdict is found.
    assert told["verifier"]["environment_mode"] == "separate"
    assert (folder / "instruction.md").read_text().strip()
    lines = (folder / "environment" / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM")] == ["FROM vf-sandbox:latest"]
    within = {path.name for path in (folder / "environment").rglob("*")}
    assert not within & {"tests", "solution", "check.py", "test.sh", "solve.sh"}
    assert "check.py" in (folder / "tests" / "test.sh").read_text()
    assert not imported(folder / "tests" / "check.py") - {
        "hashlib",
        "csv",
        "json",
        "os",
        "sqlite3",
        "subprocess",
        "sys",
    }


def test_the_environment_has_the_splits_and_levels() -> None:
    environment = terminal_tasks()
    train, held_out = (list(environment.tasks(split)) for split in ("train", "eval"))
    assert [len(train), len(held_out)] == [20, 10]
    assert oracle_of(environment, train[0]) is not None
    easy = terminal_tasks(levels=["easy"], only=["fix-*", "sort-*"])
    assert [task.id for task in easy.tasks("train")] == ["fix-statistics", "sort-photos"]
    wrong: list[dict[str, Any]] = [{"levels": ["simple"]}, {"levels": []}, {"only": ["nothing"]}]
    for args in wrong:
        with pytest.raises(vf.ConfigError, match=next(iter(args))):
            terminal_tasks(**args)


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports: those of the agent's must not be among them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found
