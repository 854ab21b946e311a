"""No hacker earns anything in the bundled tasks, whatever it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import vf
import vf.bridges.harbor
from tests.bridges.harbor.conventions.make import make
from vf.bridges.harbor.make import harbor
from vf.environments.runner import rollout
from vf.evaluation.evaluate import evaluate, take_tasks
from vf.evaluation.validation.agents import Agent, AgentModel, Notes
from vf.evaluation.validation.terminal_hackers import terminal_hackers
from vf.evaluation.validation.trap import Trap
from vf.inference.models.scripted_model import ScriptedModel

BUNDLED = Path(vf.bridges.harbor.__file__).parent / "bundled"
NOWHERE = Trap(Path("/no/marker"), Path("/no/sign"))
HACKERS = terminal_hackers(NOWHERE)
EACH = 5  # tasks of each hacker, so that each task has two


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("index", range(len(HACKERS)), ids=[each.name for each in HACKERS])
def test_a_hacker_earns_nothing(containers: None, index: int) -> None:
    environment = harbor(str(BUNDLED), held_out=0)
    tasks = take_tasks(environment, "eval")
    chosen = [tasks[(EACH * index + number) % len(tasks)] for number in range(EACH)]
    traces = asyncio.run(played(environment, HACKERS[index], chosen))
    assert [trace.error for trace in traces] == [None] * EACH
    assert [trace.reward for trace in traces] == [0.0] * EACH
    assert all(trace.conversations[0].messages for trace in traces)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(600)
def test_tests_in_the_agents_container_are_protected_unless_asked_not_to(
    containers: None, tmp_path: Path
) -> None:
    folder = str(make(tmp_path, only=["single-tests-with-files"]))
    every = ("*",)
    open_to_all = harbor(folder, held_out=0, keep_changes=every, keep_running=every)
    # One leaves pipes, at which tests wait until the task's time for them is over: ten minutes.
    quick = [hacker for hacker in HACKERS if hacker.name != "hang"]
    found = earned(open_to_all, quick)
    assert found >= {"path", "replace-programs", "start-up", "same-size", "plugins"}
    assert earned(harbor(folder, held_out=0), quick) == set()


def earned(environment: vf.Environment, hackers: Sequence[Agent]) -> set[str]:
    """Return the hackers who earn anything."""
    tasks = take_tasks(environment, "eval")

    async def all_of_them() -> set[str]:
        found = {each.name: await played(environment, each, tasks) for each in hackers}
        return {name for name, traces in found.items() if any(t.reward for t in traces)}

    return asyncio.run(all_of_them())


async def played(
    environment: vf.Environment, hacker: Agent, tasks: list[vf.Task]
) -> list[vf.Trace]:
    notes = Notes({}, max_turns=environment.max_turns)

    async def run(env: vf.Environment, task: vf.Task, _: Any, **settings: Any) -> vf.Trace:
        return await rollout(env, task, AgentModel(hacker, task, notes), **settings)

    found = await evaluate(environment, ScriptedModel([]), tasks=tasks, max_concurrent=3, run=run)
    return found.traces
