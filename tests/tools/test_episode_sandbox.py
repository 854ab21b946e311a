"""An episode's sandbox: opened late, closed always, waited for off the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import vf
from tests.waiting import Clock, until
from vf.rubrics.penalties import code_timeouts
from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult, OpenSandbox, Sandbox
from vf.sandbox.scripted_sandbox import ScriptedSandbox
from vf.sandbox.source import given_source
from vf.tools import episode_sandbox
from vf.tools.episode_sandbox import EpisodeSandbox
from vf.tools.tool_box import off_the_clock

TASK = vf.Task("t", "Go.")
CALL = {"python": {"code": "1"}}


class Shelf:
    """Opens scripted sandboxes, each after a while, and keeps them to be looked at."""

    def __init__(
        self, wait: Callable[[], Awaitable[Any]] | None = None, python: Any = ("1\n",) * 9
    ) -> None:
        self.wait, self.python = wait, python
        self.opened: list[ScriptedSandbox] = []
        self.opening = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sandbox]:
        self.opening += 1
        if self.wait is not None:
            await self.wait()
        sandbox = ScriptedSandbox(python=self.python, files={"a": "x"})
        self.opened.append(sandbox)
        async with sandbox:
            yield sandbox

    @property
    def all_closed(self) -> bool:
        return all(sandbox.closed for sandbox in self.opened)


def environment(open_sandbox: OpenSandbox) -> vf.Environment:
    env = vf.Environment()
    env.tools = [vf.PythonTool(open_sandbox), vf.FileTools(open_sandbox)]
    return env


def play(env: vf.Environment, *script: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(env, TASK, vf.ScriptedModel(script)))


def test_every_episode_has_its_own() -> None:
    shelf = Shelf()
    env = environment(shelf.open)
    model = vf.ScriptedModel([CALL, CALL, "Done."])

    async def run() -> list[vf.Trace]:
        return await asyncio.gather(*(vf.rollout(env, TASK, model) for _ in range(5)))

    assert [trace.error for trace in asyncio.run(run())] == [None] * 5
    assert [len(sandbox.calls) for sandbox in shelf.opened] == [2] * 5
    assert shelf.all_closed


def test_it_is_closed_when_the_model_fails() -> None:
    shelf = Shelf()
    trace = play(environment(shelf.open), CALL)  # the script is too short
    assert trace.error is not None
    assert trace.error.boundary == "model"
    assert len(shelf.opened) == 1
    assert shelf.all_closed


def test_it_is_closed_when_the_caller_gives_up() -> None:
    shelf = Shelf()
    waiting = asyncio.Event()

    class Waits(vf.Environment):
        async def step(self, reply: vf.Message) -> vf.Step:
            await self.run_tools(reply)
            waiting.set()
            await asyncio.Event().wait()
            return vf.Step()

    env = Waits()
    env.tools = [vf.FileTools(shelf.open)]

    async def run() -> None:
        model = vf.ScriptedModel([{"read_file": {"path": "a"}}])
        task = asyncio.create_task(vf.rollout(env, TASK, model))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert len(shelf.opened) == 1
    assert shelf.all_closed


def test_it_is_closed_when_the_rollout_takes_too_long(clock: Clock) -> None:
    shelf = Shelf()

    class Slow(vf.ScriptedModel):
        async def respond(self, conversation: Any, sampling: Any) -> Any:
            if conversation.turn:
                await clock.skip(60.0)
            return await super().respond(conversation, sampling)

    env = environment(shelf.open)
    env.timeout = 60.0
    trace = asyncio.run(vf.rollout(env, TASK, Slow([CALL, "Done."])))
    assert trace.reward is None
    assert len(shelf.opened) == 1
    assert shelf.all_closed


def test_waiting_for_it_does_not_count_as_the_tools_time(clock: Clock) -> None:
    shelf = Shelf(wait=lambda: clock.skip(100.0))
    env = environment(shelf.open)
    env.tool_timeout = 60.0
    both = [vf.ToolCall(f"c{i}", "python", '{"code": "1"}') for i in range(2)]
    trace = play(env, vf.Message("assistant", tool_calls=both), "Done.")
    assert trace.error is None
    assert trace.timing["sandbox"] >= 100.0
    assert len(shelf.opened) == 1


def test_a_sandbox_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_sandbox, "PATIENCE", 0.3)

    class Stuck(ScriptedSandbox):
        async def read_file(self, path: str, **options: Any) -> bytes:
            await asyncio.Event().wait()
            return b""

    def open_it() -> AbstractAsyncContextManager[Sandbox]:
        return Stuck()

    env = environment(open_it)
    trace = play(env, {"read_file": {"path": "a"}}, "Done.")
    assert trace.error is not None
    assert trace.error.boundary == "sandbox"
    assert "did not answer within 0.3 s" in trace.error.message


def test_a_tool_is_not_out_of_time_while_its_sandbox_ends(clock: Clock) -> None:
    """As when code slows its supervisor down: what the sandbox says of that is the result."""

    class Slow(ScriptedSandbox):
        async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
            await clock.skip(80.0)
            return ExecResult(137, stderr="[the sandbox has ended]", ended=True)

        async def read_file(self, path: str, **options: Any) -> bytes:
            await clock.skip(80.0)
            raise FileNotFoundError(2, "the sandbox has ended", path)

    env = environment(Slow)
    env.tool_timeout = 60.0
    trace = play(env, CALL, {"read_file": {"path": "a"}}, "Done.")
    assert trace.error is None
    assert "the sandbox has ended" in trace.messages[2].content
    assert trace.messages[4].content == "Error: there is no file a"


def test_the_clock_continues_after_it_was_stopped(clock: Clock) -> None:
    async def waits() -> str:
        """Wait."""
        await clock.skip(30.0)
        with off_the_clock():
            await clock.skip(100.0)
        await clock.skip(30.0)
        await asyncio.Event().wait()
        return "never"

    env = vf.Environment()
    env.tools, env.tool_timeout = [waits], 60.0
    trace = play(env, {"waits": {}}, "Done.")
    assert trace.error is not None
    assert "took longer than its 60 s" in trace.error.message
    assert trace.tool_events[0].seconds >= 160.0


def test_outside_of_a_tool_there_is_no_clock() -> None:
    async def run() -> int:
        with off_the_clock():
            return 1

    assert asyncio.run(run()) == 1


def test_it_is_prepared_before_anybody_sees_it_and_only_once() -> None:
    shelf = Shelf()

    class Prepared(vf.Environment):
        def reset(self, task: vf.Task) -> str:
            box = EpisodeSandbox.of(self, given_source(shelf.open))
            box.prepare = lambda sandbox: sandbox.write_file("ready", "yes")
            return "Go."

    env = Prepared()
    env.tools = [vf.FileTools(shelf.open)]
    read = {"read_file": {"path": "ready"}}
    trace = play(env, read, read, "Done.")
    assert [m.content for m in trace.messages if m.role == "tool"] == ["yes", "yes"]
    (sandbox,) = shelf.opened
    assert [call.method for call in sandbox.calls].count("write_file") == 1


def test_the_fresh_one_is_another_and_the_first_is_closed_by_then() -> None:
    shelf = Shelf()

    async def run() -> None:
        timing: dict[str, float] = {}
        box = EpisodeSandbox(given_source(shelf.open), timing)
        assert not box.opened
        first = await box.use(_itself)
        assert box.opened
        async with box.fresh() as second:
            assert second is not first
            assert shelf.opened[0].closed
            assert not shelf.opened[1].closed
        assert shelf.all_closed
        assert set(timing) == {"sandbox"}
        with pytest.raises(SandboxError, match="the episode has ended"):
            await box.use(_itself)
        assert len(shelf.opened) == 2

    asyncio.run(run())


async def _itself(sandbox: Sandbox) -> Sandbox:
    return sandbox


def test_one_that_opens_after_the_end_is_closed_again() -> None:
    ended = asyncio.Event()
    shelf = Shelf(wait=ended.wait)

    async def run() -> None:
        box = EpisodeSandbox(given_source(shelf.open), {})
        using = asyncio.create_task(box.use(_itself))
        await until(lambda: shelf.opening)
        await box.close()
        ended.set()
        with pytest.raises(SandboxError, match="the episode has ended"):
            await using

    asyncio.run(run())
    assert len(shelf.opened) == 1
    assert shelf.all_closed


def test_what_cannot_be_closed_is_an_error_and_the_others_are_closed() -> None:
    shelf = Shelf()

    @asynccontextmanager
    async def sticky() -> AsyncIterator[Sandbox]:
        yield ScriptedSandbox(bash=["ok"])
        raise SandboxError("it will not go")

    env = vf.Environment()
    env.tools = [vf.PythonTool(shelf.open), vf.BashTool(sticky)]
    trace = play(env, {"bash": {"command": "ls"}, "python": {"code": "1"}}, "Done.")
    assert trace.error is not None
    assert trace.error.boundary == "sandbox"
    assert "it will not go" in trace.error.message
    assert len(shelf.opened) == 1
    assert shelf.all_closed


def test_timeouts_are_counted_and_cost() -> None:
    late = ExecResult(137, timed_out=True, duration=0.1)
    shelf = Shelf(python=[late, "1\n", late])

    class Counts(vf.Environment):
        rubric = vf.Rubric(outcome=lambda trace: 1.0, penalties=[code_timeouts(0.5, scale=4)])

        async def step(self, reply: vf.Message) -> vf.Step:
            step = await self.run_tools(reply)
            box = EpisodeSandbox.of(self, given_source(shelf.open))
            step.info["code_timeouts"] = box.timeouts
            return step

    env = Counts()
    env.tools = [vf.PythonTool(shelf.open)]
    trace = play(env, CALL, CALL, CALL, "Done.")
    assert trace.info["code_timeouts"] == 2
    assert trace.reward == pytest.approx(0.75)


def test_code_that_sleeps_in_every_turn_does_not_use_up_the_rollouts_time() -> None:
    late = ExecResult(137, timed_out=True, duration=50.0)
    shelf = Shelf(python=[late] * 9)
    env = environment(shelf.open)  # a rollout has 300 s
    env.rubric = vf.Rubric(outcome=lambda trace: 0.0)
    trace = play(env, *[CALL] * 5, "Done.")
    said = [message.content for message in trace.messages if message.role == "tool"]
    assert [text.startswith("[timed out after 50.0 s]") for text in said] == [True] * 3 + [
        False
    ] * 2
    assert said[-1].startswith("Not run: the calls of this episode have used up their time.")
    assert trace.reward == 0.0


class Filed(vf.Environment):
    """Gives its episodes a file, and copies it before the model's first call."""

    def __init__(self, source: Any) -> None:
        self.source = vf.sandbox_source(source)
        self.tools = [vf.BashTool(self.source), vf.FileTools(self.source)]

    def reset(self, task: vf.Task) -> str:
        self.sandbox.write("data/in.csv", "tea,30\n")
        self.sandbox.write("raw.bin", b"\x00\xff")
        self.sandbox.prepare = self.copied
        return "Begin."

    async def copied(self, box: vf.Sandbox) -> None:
        await box.exec(["cp", "data/in.csv", "copy.csv"])


def test_files_of_reset_are_there_before_the_first_call(open_local: Any) -> None:
    calls: list[Any] = [
        {"bash": {"command": "cat copy.csv; wc -c < raw.bin"}},
        {"read_file": {"path": "data/in.csv"}},
        "Done.",
    ]
    trace = asyncio.run(vf.rollout(Filed(open_local), TASK, vf.ScriptedModel(calls)))
    assert trace.error is None, trace.error.message
    told = [m.content for m in trace.messages if m.role == "tool"]
    assert told == ["tea,30\n2", "tea,30\n"]


def test_files_of_an_episode_that_runs_nothing_open_no_sandbox() -> None:
    unused = vf.ScriptedSandbox(lost_after=0)
    trace = asyncio.run(vf.rollout(Filed(lambda: unused), TASK, vf.ScriptedModel(["Done."])))
    assert trace.error is None
    assert unused.calls == []


def test_a_file_that_cannot_be_written_is_named(open_local: Any) -> None:
    class Wrong(Filed):
        def reset(self, task: vf.Task) -> str:
            self.sandbox.write("no\0name", "text")
            return "Begin."

    model = vf.ScriptedModel([{"bash": {"command": "ls"}}, "Done."])
    with pytest.raises(vf.ConfigError, match=r"sandbox\.write\('no.*name'\) failed"):
        asyncio.run(vf.rollout(Wrong(open_local), TASK, model))


def test_what_is_not_a_file_or_comes_too_late_is_refused(open_local: Any) -> None:
    class Late(Filed):
        async def step(self, reply: vf.Message) -> vf.Step:
            step = await self.run_tools(reply)
            self.sandbox.write("late.txt", "text")
            return step

    with pytest.raises(vf.ConfigError, match="must be text or bytes, got dict"):
        Filed(open_local).episode(0).sandbox.write("a", {})  # type: ignore[arg-type]
    model = vf.ScriptedModel([{"bash": {"command": "ls"}}])
    with pytest.raises(vf.ConfigError, match=r"is open already.*await self\.sandbox\.use"):
        asyncio.run(vf.rollout(Late(open_local), TASK, model))


def test_without_one_source_there_is_no_sandbox_of_the_episode(open_local: Any) -> None:
    both = vf.Environment()
    both.tools = [vf.BashTool(vf.sandbox_source(open_local)), vf.BashTool(vf.ScriptedSandbox)]
    for environment, count in ((vf.Environment(), 0), (both, 2)):
        with pytest.raises(vf.ConfigError, match=f"there are {count}; in __init__, write self.sou"):
            _ = environment.episode(0).sandbox
    with pytest.raises(vf.ConfigError, match="keep where it comes from under another name"):
        both.sandbox = open_local
