"""Agents of a validation act side by side, and who acts is shown."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console

import vf
from tests.evaluation.validation import faulty
from vf.evaluation.validation.findings import Stage
from vf.evaluation.validation.progress import showing
from vf.evaluation.validation.validate import validate


class Counted(faulty.Sums):
    """Sums that count how many of their episodes are open at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[int] = [0]
        self.active: set[Any] = set()

    async def reset(self, task: vf.Task) -> str:
        self.active.add(self)
        self.most[0] = max(self.most[0], len(self.active))
        await asyncio.sleep(0)
        return str(task.prompt)

    async def close(self) -> None:
        self.active.discard(self)


def test_agents_act_side_by_side_and_not_too_many() -> None:
    environment = Counted()
    report = asyncio.run(validate(environment, tasks=2))
    assert report.passed
    assert 2 < environment.most[0] <= 8


def test_the_rollouts_of_each_stage_are_counted_and_their_agents_named() -> None:
    stages: list[Stage] = []
    report = asyncio.run(validate(faulty.Sums(), tasks=2, on_progress=stages.append))
    last = {stage.name: stage for stage in stages}
    assert [stage.done for stage in last.values()] == [stage.total for stage in last.values()]
    assert not any(stage.running for stage in last.values())
    named = {name for stage in stages for name in stage.running}
    assert named >= {agent.name for agent in report.agents}


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_a_bar_and_who_acts(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    with showing(console) as show:
        show(Stage("hackers", 3, 10, ["late-reward", "links"]))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("3/10" in printed) is terminal
    assert ("late-reward, links" in printed) is terminal
