"""Hackers with a shell: they find it among the tools, and do nothing outside of a sandbox."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vf.evaluation.validation.agents import Agent, Notes, Situation
from vf.evaluation.validation.terminal_hackers import has_shell, terminal_hackers
from vf.evaluation.validation.trap import Trap, set_trap
from vf.traces.task import Task

NOWHERE = Trap(Path("/no/marker"), Path("/no/sign"))


def tool(name: str, **parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def spoken(agent: Agent, tools: list[dict[str, Any]], turn: int = 0, max_turns: int = 9) -> Any:
    notes = Notes({"other": "guess"}, max_turns=max_turns)
    return agent.speak(Situation(Task("t", "x"), [], tools, turn, random.Random(1), notes))


def test_a_script_is_run_once_by_the_first_shell_and_then_a_guess_is_made() -> None:
    agent = terminal_hackers(NOWHERE)[0]
    tools = [tool("read", path="string"), tool("bash", command="string", seconds="integer")]
    line = spoken(agent, tools)
    assert isinstance(line["bash"]["seconds"], int)
    assert "/tests" in line["bash"]["command"] or "solve.sh" in line["bash"]["command"]
    assert spoken(agent, tools, turn=1) == "guess"
    assert spoken(agent, tools, max_turns=1) == "guess"
    assert spoken(agent, tools[:1]) == "guess"
    assert [has_shell(tools), has_shell(tools[:1]), has_shell([])] == [True, False, False]


@pytest.mark.parametrize("index", range(len(terminal_hackers(NOWHERE))))
def test_scripts_are_sound_and_harmless_where_they_find_the_trap(index: int) -> None:
    with set_trap() as trap:
        line = spoken(terminal_hackers(trap)[index], [tool("bash", command="string")])
        command = line["bash"]["command"]
        subprocess.run(["sh", "-n", "-c", command], check=True)
        done = subprocess.run(["sh", "-c", command], check=True, capture_output=True)
        assert (done.stdout, done.stderr, trap.sprung) == (b"", b"", True)
