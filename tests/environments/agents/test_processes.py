"""Agents in processes of their own: results, failures, cancellation, and every kind of end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.environments.agents import process_functions as functions
from tests.waiting import until, wait_until
from vf.runtime import async_processes
from vf.runtime.async_processes import AsyncProcesses
from vf.runtime.calling import call
from vf.runtime.errors import RemoteError
from vf.runtime.interrupts import is_alive

MODEL = vf.ScriptedModel(["4"] * 9)


def task(id: str = "t", **info: Any) -> vf.Task:
    return vf.Task(id, "Go.", answer="5", info=info)


def environment(agent: Any, **settings: Any) -> vf.AgentEnvironment:
    return vf.AgentEnvironment(agent, **{"tasks": [task()], "processes": 1, **settings})


def play(where: vf.AgentEnvironment, *tasks: vf.Task) -> list[vf.Trace]:
    """Run rollouts at once."""

    async def rollouts() -> list[vf.Trace]:
        return await asyncio.gather(*(vf.rollout(where, each, MODEL) for each in tasks))

    return asyncio.run(rollouts())


@pytest.mark.slow
@pytest.mark.gate
def test_functions_run_in_as_many_processes_as_are_asked_for() -> None:
    for agent in (functions.solve, functions.solve_in_a_thread):
        traces = play(environment(agent, processes=2), *(task(str(n)) for n in range(4)))
        said = [trace.info["output"].split() for trace in traces]
        assert {(answer, expected) for answer, expected, _ in said} == {("4", "5")}
        pids = {int(pid) for *_, pid in said}
        assert len(pids) == 2
        assert os.getpid() not in pids
        assert not any(map(is_alive, pids))  # the event loop has ended


def test_a_process_runs_many_rollouts_at_once() -> None:
    traces = play(environment(functions.meet), *(task(str(n), all=8) for n in range(8)))
    assert [trace.info["output"] for trace in traces] == ["4"] * 8


def test_rollouts_that_come_together_begin_one_after_the_other() -> None:
    traces = play(environment(functions.begin), *(task(str(n)) for n in range(8)))
    assert [trace.info["output"] for trace in traces] == ["alone: True"] * 8


def test_an_exception_is_a_crash_with_its_own_traceback() -> None:
    failed, scored = play(environment(functions.crash), task(), task(answered=True))
    assert failed.error is not None
    assert "failed before it had an answer" in failed.error.message
    assert failed.error.message.endswith("KeyError: 'missing'")
    assert (scored.error, scored.reward) == (None, 0.0)
    assert scored.info["program"]["error"].endswith("KeyError: 'missing'\n")
    assert "in crash\n" in scored.info["program"]["error"]


def test_failures_of_the_machinery_and_numbers_are_no_crash() -> None:
    (failed,) = play(environment(functions.fail), task())
    assert failed.error is not None
    assert (failed.error.boundary, failed.error.message) == ("tool", "the tool's server is down")
    (number,) = play(environment(functions.number), task())
    assert (number.error, number.info["output"]) == (None, "4")


@pytest.mark.slow
def test_an_agent_that_takes_too_long_is_cancelled_there(tmp_path: Path) -> None:
    (trace,) = play(environment(functions.wait, timeout=1.5), task(folder=str(tmp_path)))
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.TRUNCATED)
    assert (tmp_path / "stopped").exists()


async def test_a_call_can_be_cancelled_before_it_begins() -> None:
    endpoint = vf.Endpoint("http://127.0.0.1:9/r/x/v1", "key")
    processes = AsyncProcesses(functions.crash, 1, what="the process", setting="processes")
    with pytest.raises(RemoteError, match="KeyError: 'missing'"):
        await processes.call(task(), endpoint)
    calls = [asyncio.create_task(processes.call(task(), endpoint)) for _ in range(8)]
    await asyncio.sleep(0)  # they are sent, and what cancels them comes right behind
    for each in calls:
        each.cancel()
    async with asyncio.timeout(async_processes.HEAR_TIMEOUT):
        await asyncio.wait(calls)


@pytest.mark.slow
@pytest.mark.gate
def test_a_process_that_is_held_up_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_processes, "HEAR_TIMEOUT", 0.1)
    (trace,) = play(environment(functions.block, timeout=1.0), task())
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.TRUNCATED)


async def test_a_rollout_outlives_its_process_as_an_agent_that_crashed() -> None:
    where = environment(functions.die)

    tasks = [task("1", die=True), task("2", die=True, answered=False), task("3")]
    scored, failed, after = [await vf.rollout(where, each, MODEL) for each in tasks]
    assert (scored.error, scored.stop_reason) == (None, vf.StopReason.TERMINATED)
    assert "the process of the agents ended with SIGKILL" in scored.info["program"]["error"]
    assert failed.error is not None
    assert "the process of the agents ended with SIGKILL" in failed.error.message
    assert (after.error, after.info["output"].isdigit()) == (None, True)


async def test_all_that_was_under_way_hears_of_the_end_of_a_process(tmp_path: Path) -> None:
    where = environment(functions.wait)

    work = asyncio.create_task(vf.rollout(where, task(folder=str(tmp_path)), MODEL))
    await until((tmp_path / "pids").exists)
    agent, program = map(int, (tmp_path / "pids").read_text().split())
    os.kill(agent, signal.SIGKILL)
    trace = await work
    await until(lambda: not is_alive(program))
    assert "SIGKILL" in trace.info["program"]["error"]
    assert not (tmp_path / "stopped").exists()


PARENT = """
import asyncio, sys
import vf
from tests.environments.agents import process_functions as functions

task = vf.Task("t", "Go.", info={"folder": sys.argv[1]})
where = vf.AgentEnvironment(functions.wait, tasks=[task], processes=1)
asyncio.run(vf.rollout(where, task, vf.ScriptedModel(["4"])))
"""


def test_nothing_outlives_the_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    wait_until((tmp_path / "pids").exists)
    parent.kill()
    parent.wait()
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        wait_until(partial(lambda pid: not is_alive(pid), pid))


async def test_start_gets_the_process_ready() -> None:
    where = environment(functions.solve, timeout=5.0)
    await call(where.start)
    assert (await vf.rollout(where, task(), MODEL)).error is None


def test_a_module_that_cannot_be_imported_there_is_the_users_to_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VF_TEST_UNUSABLE", "1")
    with pytest.raises(vf.ConfigError, match=r"importing solve from .*process_functions") as raised:
        play(environment(functions.solve), task())
    assert "ZeroDivisionError" in str(raised.value)


def test_a_function_without_a_place_is_refused() -> None:
    async def closure(task: vf.Task, endpoint: vf.Endpoint) -> None: ...

    for agent in (closure, lambda task, endpoint: None):
        with pytest.raises(vf.ConfigError, match=r"processes: .*Define it at the top of a module"):
            environment(agent)
    for count in (-1, True, 1.5):
        with pytest.raises(vf.ConfigError, match="processes must be 0 or a number"):
            environment(functions.solve, processes=count)


def test_an_agent_of_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "agent_of_a_file.py"
    file.write_text(Path(functions.__file__).read_text() + FILE)
    made = vf.make(f"{file}:environment")
    assert isinstance(made, vf.AgentEnvironment)
    (trace,) = play(made, task())
    assert (trace.error, trace.info["output"].split()[:2]) == (None, ["4", "5"])


FILE = """

environment = vf.AgentEnvironment(solve, tasks=[], processes=1)
"""
