"""Everything that waits has a deadline, and what passed it is named."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, ClassVar

import aiohttp
import pytest

import vf
from tests.waiting import Clock, until
from vf.environments import agent_episode, runner
from vf.tools.episode import Service

TASK = vf.Task("t", "Go.")
SECONDS = 60.0  # every deadline here

hangs = threading.Event()


def hang() -> None:
    hangs.set()
    threading.Event().wait()


async def hang_awaited() -> None:
    hangs.set()
    await asyncio.Event().wait()


async def late(clock: Clock, environment: vf.Environment, model: Any = None) -> vf.Trace:
    """Return the trace of a rollout whose deadline passes while something hangs."""
    hangs.clear()
    rollout = vf.rollout(environment, TASK, model or vf.ScriptedModel(["a"]))
    running = asyncio.create_task(rollout)
    await until(hangs.is_set)
    await clock.skip(SECONDS)
    return await running


def run(clock: Clock, environment: vf.Environment, model: Any = None) -> vf.Trace:
    return asyncio.run(late(clock, environment, model))


def assert_failed(trace: vf.Trace, boundary: str, *words: str) -> None:
    assert trace.error is not None
    assert trace.error.boundary == boundary
    for word in words:
        assert word in trace.error.message
    assert trace.reward is None


class Hanging(vf.Environment):
    timeout = SECONDS

    def __init__(self, where: str, awaited: bool) -> None:
        self.where, self.awaited = where, awaited

    def hang(self, where: str, result: Any) -> Any:
        if where == self.where:
            return hang_awaited() if self.awaited else hang()
        return result

    def reset(self, task: vf.Task) -> Any:
        return self.hang("reset", "Go.")

    def step(self, reply: vf.Message) -> Any:
        return self.hang("step", vf.Step(terminated=True))

    def close(self) -> Any:
        return self.hang("close", None)


@pytest.mark.parametrize("awaited", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_hangs_is_named_within_the_timeout(
    clock: Clock, where: str, awaited: bool
) -> None:
    trace = run(clock, Hanging(where, awaited))
    assert_failed(trace, "environment", "longer than its 60 s", f"waiting for {where}")


@pytest.mark.parametrize("awaited", [False, True], ids=["plain", "coroutine"])
def test_a_close_that_hangs_is_left_behind(
    clock: Clock, awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CLOSE_TIMEOUT", SECONDS)
    trace = run(clock, Hanging("close", awaited))
    assert_failed(trace, "environment", "close took longer than 60 s")


def test_a_model_that_hangs_is_a_model_error(clock: Clock) -> None:
    async def silent(messages: list[vf.Message]) -> str:
        await hang_awaited()
        raise AssertionError

    environment = vf.Environment()
    environment.timeout = SECONDS
    assert_failed(run(clock, environment, vf.ScriptedModel(silent)), "model", "waiting for model")


def test_a_judge_that_hangs_is_a_rubric_error(clock: Clock) -> None:
    async def judge(trace: vf.Trace) -> float:
        await hang_awaited()
        return 1.0

    environment = vf.Environment()
    environment.timeout = SECONDS
    environment.rubric = vf.Rubric(judge)
    assert_failed(run(clock, environment), "rubric", "waiting for score")


def block() -> str:
    hang()
    return "late"


async def dawdle() -> str:
    await hang_awaited()
    return "late"


@pytest.mark.parametrize("tool", [block, dawdle])
def test_a_tool_past_its_deadline_is_a_tool_error(clock: Clock, tool: Any) -> None:
    environment = vf.Environment()
    environment.tools = [tool]
    environment.tool_timeout = SECONDS
    trace = run(clock, environment, vf.ScriptedModel([{tool.__name__: {}}]))
    assert_failed(trace, "tool", repr(tool.__name__), "longer than its 60 s")
    [event] = trace.tool_events
    assert event.kind == "error"
    assert event.seconds >= SECONDS


async def test_a_slow_tool_holds_no_other_rollout(clock: Clock) -> None:
    environment = vf.Environment()
    environment.tools = [block]
    environment.tool_timeout = SECONDS

    def script(messages: list[vf.Message]) -> Any:
        return {"block": {}} if messages[0].content == "slow" else "done"

    finished: list[str] = []

    hangs.clear()
    work = vf.evaluate(
        environment,
        vf.ScriptedModel(script),
        tasks=[vf.Task("slow", "slow"), vf.Task("fast", "fast")],
        on_trace=lambda trace: finished.append(trace.task.id),
    )
    evaluating = asyncio.create_task(work)
    await until(lambda: hangs.is_set() and finished)
    assert finished == ["fast"]
    await clock.skip(SECONDS)
    evaluation = await evaluating
    assert finished == ["fast", "slow"]
    assert [trace.error is None for trace in evaluation.traces] == [False, True]


HUNG = """
import asyncio, threading, vf
def forever() -> str:
    threading.Event().wait()
    return "never"
environment = vf.Environment()
environment.tools, environment.tool_timeout = [forever], 0.1
model = vf.ScriptedModel([{"forever": {}}])
trace = asyncio.run(vf.rollout(environment, vf.Task("t", "Go."), model))
print(trace.error.boundary)
"""


def test_a_hung_tool_does_not_keep_the_process_alive() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "tool\n"


def test_tasks_may_differ_in_the_time_that_they_take(clock: Clock) -> None:
    class Slow(vf.Environment):
        timeout = SECONDS

        def timeout_of(self, task: vf.Task) -> float:
            return float(task.answer)

        async def step(self, reply: vf.Message) -> vf.Step:
            await clock.skip(SECONDS)
            return vf.Step(terminated=True)

    async def run(seconds: float) -> vf.Trace:
        task = vf.Task("a", "Go.", answer=seconds)
        return await vf.rollout(Slow(), task, vf.ScriptedModel(["Yes."]))

    short, long = (asyncio.run(run(seconds)) for seconds in (SECONDS / 2, 10 * SECONDS))
    assert short.error is not None
    assert "longer than its 30 s" in short.error.message
    assert long.error is None


class Stubborn(vf.Environment):
    """Catches its cancellation, wherever that is to happen, until it is set free."""

    timeout = SECONDS

    def __init__(self, where: str) -> None:
        self.where = where

    async def stay(self, where: str) -> None:
        if where == self.where:
            hangs.set()
            while not free.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

    async def reset(self, task: vf.Task) -> str:
        await self.stay("reset")
        return "Go."

    @vf.tool
    async def act(self) -> str:
        """Act."""
        await self.stay("tool")
        return "done"

    async def close(self) -> None:
        await self.stay("close")

    rubric = vf.Rubric(lambda trace: 1.0)


free = threading.Event()


@pytest.mark.parametrize("where", ["reset", "tool", "close"])
def test_what_catches_its_cancellation_is_left_behind(clock: Clock, where: str) -> None:
    hangs.clear()
    free.clear()

    async def main() -> vf.Trace:
        model = vf.ScriptedModel([{"act": {}}, "Done."])
        running = asyncio.create_task(vf.rollout(Stubborn(where), TASK, model))
        await until(hangs.is_set)
        while not running.done():
            await clock.skip(runner.LOOK_SECONDS)
        free.set()
        return await running

    assert_failed(asyncio.run(main()), "environment", "left behind", "CancelledError")


@pytest.mark.parametrize("where", ["reset", "tool", "close"])
async def test_who_gives_up_does_not_wait_for_what_catches_its_cancellation(
    clock: Clock, where: str
) -> None:
    hangs.clear()
    free.clear()

    model = vf.ScriptedModel([{"act": {}}, "Done."])
    running = asyncio.create_task(vf.rollout(Stubborn(where), TASK, model))
    await until(hangs.is_set)
    running.cancel()
    while not running.done():
        await clock.skip(runner.LOOK_SECONDS)
    assert running.cancelled()
    free.set()


class StubbornAgent:
    """An agent's attempt that catches its cancellation in one of its phases."""

    home = __name__
    services: ClassVar[list[Service]] = []

    def __init__(self, where: str) -> None:
        self.where = where

    def check(self) -> None: ...

    def sandbox_spec(self, task: vf.Task) -> None: ...

    def measured(self) -> dict[str, Any]:
        return {}

    def attempt(self, task: vf.Task, endpoint: vf.Endpoint, episode: vf.Environment) -> Any:
        self.endpoint = endpoint
        return self

    async def stay(self, where: str) -> None:
        await Stubborn.stay(self, where)  # type: ignore[arg-type]

    async def run(self) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
        headers = {"Authorization": f"Bearer {self.endpoint.key}"}
        url = f"{self.endpoint.url}/chat/completions"
        async with aiohttp.request("POST", url, json=body, headers=headers) as answer:
            assert answer.status == 200
        await self.stay("run")
        return "done"

    async def finish(self) -> None:
        await self.stay("finish")

    async def close(self) -> None: ...


@pytest.mark.parametrize("where", ["run", "finish"])
async def test_an_agent_that_catches_its_cancellation_is_left_behind_and_scored(
    clock: Clock, where: str
) -> None:
    hangs.clear()
    free.clear()
    environment = vf.AgentEnvironment(
        StubbornAgent(where), tasks=[TASK], rubric=vf.Rubric(lambda trace: 1.0), timeout=SECONDS
    )

    running = asyncio.create_task(vf.rollout(environment, TASK, vf.ScriptedModel(["a"])))
    await until(lambda: hangs.is_set() or running.done())
    await clock.skip(SECONDS)
    await clock.skip(agent_episode.STOP_TIMEOUT)
    trace = await running
    free.set()
    assert (trace.error, trace.reward) == (None, 1.0)
