"""Plain lines, where there is no terminal for a live display."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vf.trainer.run.display import Display
from vf.trainer.watching.terminal import evaluation_line

if TYPE_CHECKING:
    from tests.trainer.watching.conftest import Terminal

ROOT = Path(__file__).resolve().parents[3]
RUN = """
from vf.traces.messages import Message, ToolCall
from vf.traces.task import Task
from vf.traces.trace import Score, Trace
from vf.trainer.watching.terminal import TerminalDisplay
d = TerminalDisplay()
for _ in range(3):
    d.waiting("the engine starts")
d.start(0, 4)
d.phase("evaluate")
d.evaluation(0, {"eval/reward/mean": 0.25, "eval/success_rate": 0.125})
trace = Trace("e", Task("t-1", "p"), 0, score=Score(0.5, 0.5))
trace.messages = [
    Message("user", "[bold]1+1[/bold]? \\x1b[2J\\x07"),
    Message("assistant", "", tool_calls=[ToolCall("c", "add", '{"a": 1}')]),
]
d.sample(trace); d.rollouts(1, 2)
d.step({"step": 1, "reward/mean": 0.5, "loss": 0.25, "groups/uniform_fraction": 0.5,
        "tokens_per_s/generate": 1234.0, "tokens_per_s/train": 99.0, "time/total": 1.0})
d.note("a \\x1b]0;title\\x07 [red]note[/red] " + "that is long " * 20)
d.stop(); d.stop()
"""
STEP = (
    "█████░░░░░░░░░░░░░░░ step    1/4  reward 0.500  loss +0.2500  tok/s generated  1,234"
    "  trained      99  50% of groups without signal"
)


@pytest.mark.parametrize("environ", [{}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_file_gets_lines(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        capture_output=True,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "TERM": "xterm", **environ},
        check=True,
        text=True,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    if "FORCE_COLOR" in environ:  # colours, but no screen
        assert "\x1b[1m" in done.stdout
        assert "\x1b[?" not in done.stdout
        return
    assert "\x1b" not in done.stdout
    assert lines.count("the engine starts") == 1  # later ones say for how long
    assert "held-out reward after step 0: 0.250 (success 12%)" in lines
    assert STEP in lines
    assert "[bold]1+1[/bold]? <U+001B>[2J<U+0007>" in done.stdout
    assert '→ add({"a": 1})' in done.stdout
    assert "t-1: reward 0.50" in done.stdout
    note = f"note: a <U+001B>]0;title<U+0007> [red]note[/red] {'that is long ' * 20}"
    assert lines.count(note) == 1


def test_a_dumb_terminal_gets_the_same_lines(terminal: Callable[..., Terminal]) -> None:
    screen = terminal(160, 30)
    screen.run(RUN, TERM="dumb")
    assert screen.ends() == 0
    assert STEP in screen.text
    assert b"\x1b" not in screen.raw


def test_a_file_that_cannot_hold_every_character_gets_lines_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        capture_output=True,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        check=True,
        text=True,
    )
    assert "step    1/4  reward 0.500" in done.stdout


def test_a_display_shows_nothing_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.waiting("w")
    display.start(0, 1)
    display.phase("train")
    display.rollouts(1, 2)
    display.note("n")
    display.stop()
    assert capfd.readouterr() == ("", "")


def test_an_evaluation_without_outcomes_has_no_success_rate() -> None:
    several = {"eval/reward/mean": 0.25, "eval/success_rate": 0.125, "eval/pass@1": 0.125}
    assert evaluation_line(3, {**several, "eval/pass@2": 0.2, "eval/pass@16": 0.5}).plain == (
        "held-out reward after step 3: 0.250 (success 12%, pass@16 50%)"
    )
    assert evaluation_line(3, {"eval/reward/mean": 0.25}).plain == (
        "held-out reward after step 3: 0.250"
    )
