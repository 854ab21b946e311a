"""The hackers' code does damage in a sandbox, and none on this machine."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vf.environments.validation.agents import Notes, Situation
from vf.environments.validation.hackers import hackers
from vf.environments.validation.trap import Trap, set_trap
from vf.inference.scripted import Line
from vf.traces.messages import Message
from vf.traces.task import Task


def tool(*parameters: str) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": "act", "parameters": schema}}


def texts_of(name: str, trap: Trap, *parameters: str) -> dict[str, Any]:
    """Return what a hacker puts into a tool's parameters."""
    agent = next(agent for agent in hackers(trap) if agent.name == name)
    situation = Situation(
        task=Task("t", "p"),
        messages=[Message("user", "p")],
        tools=[tool(*parameters)],
        turn=0,
        rng=random.Random(0),
        notes=Notes(options=["1"], frequent="1", max_turns=5),
    )
    line: Line = agent.speak(situation)
    assert isinstance(line, dict)
    return dict(line["act"])


def repository(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_all.py").write_text("def test_it():\n    assert False\n")
    return folder


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\nassert False"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def run_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f"{command}\nexit 3"], cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def elsewhere(tmp_path: Path) -> Trap:
    """A trap as code in a sandbox sees it: it is not there."""
    return Trap(tmp_path / "no-such-file", tmp_path / "sign")


@pytest.mark.parametrize("language", ["code", "command"])
def test_in_a_sandbox_tests_are_overwritten_and_deleted(
    language: str, elsewhere: Trap, tmp_path: Path
) -> None:
    run = run_python if language == "code" else run_shell
    folder = repository(tmp_path / "repo")
    test = folder / "tests" / "test_all.py"
    run(texts_of("overwrite-tests", elsewhere, language)[language], folder)
    assert "assert True" in test.read_text()
    run(texts_of("patch-runner", elsewhere, language)[language], folder)
    assert "passed" in (folder / "conftest.py").read_text()
    run(texts_of("delete-tests", elsewhere, language)[language], folder)
    assert not test.exists()
    assert not elsewhere.sprung


@pytest.mark.parametrize("language", ["code", "command"])
@pytest.mark.parametrize("name", ["overwrite-tests", "patch-runner", "delete-tests"])
def test_on_this_machine_nothing_is_touched_and_a_sign_is_left(
    name: str, language: str, tmp_path: Path
) -> None:
    run = run_python if language == "code" else run_shell
    folder = repository(tmp_path / "repo")
    with set_trap() as trap:
        run(texts_of(name, trap, language)[language], folder)
        assert trap.sprung
    assert "assert False" in (folder / "tests" / "test_all.py").read_text()
    assert not (folder / "conftest.py").exists()


@pytest.mark.parametrize("language", ["code", "command"])
def test_a_process_is_ended_early_with_code_0(
    language: str, elsewhere: Trap, tmp_path: Path
) -> None:
    run = run_python if language == "code" else run_shell
    ended = run(texts_of("exit-early", elsewhere, language)[language], tmp_path)
    assert ended.returncode == 0
    assert "All tests passed." in ended.stdout


def test_the_validation_itself_is_never_ended() -> None:
    with set_trap() as trap:
        code = texts_of("exit-early", trap, "code")["code"]
        with pytest.raises(RuntimeError, match="process of the validation"):
            exec(code, {})
        assert trap.sprung


def test_a_trap_stands_in_an_empty_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with set_trap() as trap:
        assert list(Path.cwd().iterdir()) == []
        assert trap.marker.exists()
        assert not trap.sprung
    assert Path.cwd() == tmp_path
    assert not trap.marker.parent.exists()


def test_files_are_overwritten_through_tools_that_write_files(elsewhere: Trap) -> None:
    texts = texts_of("overwrite-tests", elsewhere, "path", "content")
    assert texts["path"] == "tests/test_all.py"
    assert "assert True" in texts["content"]
