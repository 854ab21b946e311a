"""The hackers' code does damage in a sandbox, and none on this machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from vf.evaluation.validation import trap
from vf.evaluation.validation.agents import Notes, Situation
from vf.evaluation.validation.hackers import hackers
from vf.evaluation.validation.trap import Trap, set_trap
from vf.inference.models.scripted_model import Line
from vf.sandbox.container.opening import open_container
from vf.sandbox.contract import ExecResult, Sandbox
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
        notes=Notes({"other": "1"}, max_turns=5),
    )
    line: Line = agent.speak(situation)
    assert isinstance(line, dict)
    return dict(line["act"])


MARKER, SIGN = "/workspace/marker", "/workspace/sign"
TEST = "def test_it():\n    assert False\n"


class Box:
    """A container with a failing test in it, and how what was run in it has ended."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.trap = Trap(Path(MARKER), Path(SIGN))

    async def act(self, name: str, language: str) -> ExecResult:
        """Run what a hacker puts into a tool, and then fail."""
        text = texts_of(name, self.trap, language)[language]
        if language == "code":
            return await self.sandbox.exec(["python3", "-I", "-c", f"{text}\nassert False"])
        return await self.sandbox.exec(["sh", "-c", f"{text}\nexit 3"])

    async def read(self, path: str) -> str | None:
        try:
            return (await self.sandbox.read_file(path)).decode()
        except FileNotFoundError:
            return None


InBox = Callable[[Callable[[Box], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def in_box(containers: None) -> InBox:
    """Run something in a new container: no code of a hacker runs on this machine."""

    def run(work: Callable[[Box], Coroutine[Any, Any, None]]) -> None:
        async def inside() -> None:
            async with open_container() as sandbox:
                await sandbox.write_file("tests/test_all.py", TEST)
                await work(Box(sandbox))

        asyncio.run(inside())

    return run


@pytest.mark.parametrize("language", ["code", "command"])
def test_where_the_trap_is_not_tests_are_overwritten_and_deleted(
    language: str, in_box: InBox
) -> None:
    async def work(box: Box) -> None:
        await box.act("overwrite-tests", language)
        assert "assert True" in (await box.read("tests/test_all.py") or "")
        await box.act("patch-runner", language)
        assert "passed" in (await box.read("conftest.py") or "")
        await box.act("delete-tests", language)
        assert await box.read("tests/test_all.py") is None
        ended = await box.act("exit-early", language)
        assert ended.returncode == 0
        assert "All tests passed." in ended.stdout
        assert await box.read(SIGN) is None

    in_box(work)


@pytest.mark.parametrize("language", ["code", "command"])
def test_where_the_trap_is_nothing_is_touched_and_a_sign_is_left(
    language: str, in_box: InBox
) -> None:
    async def work(box: Box) -> None:
        await box.sandbox.write_file(MARKER, "")
        for name in ("overwrite-tests", "patch-runner", "delete-tests"):
            await box.act(name, language)
            assert await box.read(SIGN) == ""
            await box.sandbox.exec(["rm", SIGN])
        assert await box.read("tests/test_all.py") == TEST
        assert await box.read("conftest.py") is None

    in_box(work)


def test_the_validation_itself_is_never_ended(in_box: InBox) -> None:
    async def work(box: Box) -> None:
        await box.sandbox.write_file(MARKER, "")
        code = texts_of("exit-early", box.trap, "code")["code"]
        inside = f"import sys\nsys.modules[{trap.__name__!r}] = sys\nexec({code!r}, {{}})"
        ended = await box.sandbox.exec(["python3", "-I", "-c", inside])
        assert ended.returncode == 1
        assert "RuntimeError: this is the process of the validation" in ended.stderr
        assert await box.read(SIGN) == ""

    in_box(work)


def test_a_trap_is_in_an_empty_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with set_trap() as trap:
        assert list(Path.cwd().iterdir()) == []
        assert trap.marker.exists()
        assert not trap.sprung
    assert Path.cwd() == tmp_path
    assert not trap.marker.parent.exists()


def test_files_are_overwritten_through_tools_that_write_files() -> None:
    texts = texts_of("overwrite-tests", Trap(Path(MARKER), Path(SIGN)), "path", "content")
    assert texts["path"] == "tests/test_all.py"
    assert "assert True" in texts["content"]
