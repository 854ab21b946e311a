"""An infrastructure failure is attributed to its boundary, and is never a reward."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import vf
from vf.runtime.errors import SandboxError

TASK = vf.Task("t", "Go.")


def run(environment: vf.Environment, model: Any = None) -> vf.Trace:
    model = model or vf.ScriptedModel(["a", "b"])
    return asyncio.run(vf.rollout(environment, TASK, model))


def assert_failed(trace: vf.Trace, boundary: str, *words: str) -> None:
    assert trace.error is not None
    assert trace.error.boundary == boundary
    for word in words:
        assert word in trace.error.message
    assert trace.reward is None
    assert (trace.stop_reason is vf.StopReason.ERROR) == (boundary != "rubric")
    assert trace.ended == (boundary == "rubric")


def throw(error: BaseException) -> NoReturn:
    raise error


class Scene(vf.Environment):
    """Fails where it is told to: a value is returned, an exception is raised."""

    def __init__(self, awaited: bool = False, **acts: Any) -> None:
        self.awaited, self.acts = awaited, acts

    def act(self, name: str, otherwise: Any) -> Any:
        act = self.acts.get(name, otherwise)

        async def later() -> Any:
            return throw(act) if isinstance(act, BaseException) else act

        if self.awaited:
            return later()
        return throw(act) if isinstance(act, BaseException) else act

    def reset(self, task: vf.Task) -> Any:
        return self.act("reset", "Go.")

    def step(self, reply: vf.Message) -> Any:
        return self.act("step", vf.Step(reward=1.0, terminated=True))

    def close(self) -> Any:
        return self.act("close", None)


@pytest.mark.parametrize("awaited", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize("name", ["reset", "step", "close"])
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("by zero"),
        TimeoutError("own"),
        vf.ToolError("outside a tool"),
        StopIteration(3),
        SystemExit(3),
        asyncio.CancelledError("nobody asked"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_environment_that_raises_fails_its_own_rollout(
    name: str, error: BaseException, awaited: bool
) -> None:
    trace = run(Scene(awaited, **{name: error}))
    assert_failed(trace, "environment", f"{name} raised")


def test_a_lost_sandbox_keeps_its_boundary() -> None:
    assert_failed(run(Scene(step=SandboxError("gone"))), "sandbox", "gone")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (None, ["step returned NoneType, not vf.Step"]),
        (("obs", 1.0, True, False, {}), ["step returned tuple"]),
        (vf.Step(reward=math.nan, terminated=True), ["reward of nan"]),
        (vf.Step(reward=math.inf, terminated=True), ["reward of inf"]),
        (vf.Step(reward=None, terminated=True), ["reward of None"]),  # type: ignore[arg-type]
        (vf.Step(info=None, terminated=True), ["NoneType as info"]),  # type: ignore[arg-type]
        (vf.Step(info={"x": object()}, terminated=True), ["info that is not JSON"]),
        (vf.Step(), ["neither ended the episode nor returned messages"]),
        (vf.Step(observation=3), ["step returned a wrong observation", "int"]),  # type: ignore[arg-type]
        (vf.Step([{"role": "robot"}]), ["step returned a wrong observation", "'robot'"]),
    ],
)
def test_a_step_that_breaks_the_contract_is_an_error(step: Any, words: list[str]) -> None:
    assert_failed(run(Scene(step=step)), "environment", *words)


@pytest.mark.parametrize(
    ("observation", "words"),
    [([], ["reset returned no messages", "'t'"]), (None, ["reset returned a wrong", "NoneType"])],
)
def test_a_reset_that_gives_no_messages_is_an_error(observation: Any, words: list[str]) -> None:
    assert_failed(run(Scene(reset=observation)), "environment", *words)


def test_a_failure_in_close_never_hides_the_first_one() -> None:
    trace = run(Scene(step=KeyError("first"), close=KeyError("second")))
    assert_failed(trace, "environment", "step raised KeyError: 'first'")


def test_a_prompt_of_the_wrong_type_is_the_users_error() -> None:
    task = vf.Task("t", [{"role": "robot", "content": "x"}])
    with pytest.raises(vf.ConfigError, match="'robot'"):
        asyncio.run(vf.rollout(vf.Environment(), task, vf.ScriptedModel(["a"])))


def broken() -> str:
    raise ZeroDivisionError("by zero")


async def broken_later() -> str:
    raise ZeroDivisionError("by zero")


def lose_sandbox() -> str:
    raise SandboxError("the container is gone")


def leave() -> str:
    raise SystemExit(0)


@pytest.mark.parametrize("tool", [broken, broken_later])
def test_a_tool_that_raises_anything_else_is_an_infrastructure_error(
    tool: Callable[..., Any],
) -> None:
    environment = vf.Environment()
    environment.tools = [tool]
    trace = run(environment, vf.ScriptedModel([{tool.__name__: {}}, "Done."]))
    assert_failed(trace, "tool", f"{tool.__name__!r} raised ZeroDivisionError: by zero")
    assert trace.error is not None
    assert trace.error.type == "ZeroDivisionError"
    assert "raise ZeroDivisionError" in trace.error.traceback
    assert [event.kind for event in trace.tool_events] == ["error"]
    assert [message.role for message in trace.messages] == ["user", "assistant"]


def test_a_tool_cannot_end_the_process() -> None:
    environment = vf.Environment()
    environment.tools = [leave]
    trace = run(environment, vf.ScriptedModel([{"leave": {}}, "Done."]))
    assert_failed(trace, "tool", "'leave'", "SystemExit(0)")


def test_a_sandbox_lost_inside_a_tool_keeps_its_boundary() -> None:
    environment = vf.Environment()
    environment.tools = [lose_sandbox]
    trace = run(environment, vf.ScriptedModel([{"lose_sandbox": {}}, "Done."]))
    assert_failed(trace, "sandbox", "the container is gone")
    assert [event.kind for event in trace.tool_events] == ["error"]


def test_calls_beside_a_failed_one_are_not_recorded_as_ok() -> None:
    async def wait() -> str:
        await asyncio.Event().wait()
        return "waited"

    environment = vf.Environment()
    environment.tools = [broken, wait]
    trace = run(environment, vf.ScriptedModel([{"wait": {}, "broken": {}}]))
    assert_failed(trace, "tool", "'broken'")
    details = [(event.name, event.kind, event.detail) for event in trace.tool_events]
    assert details[0] == ("wait", "error", "cancelled")
    assert details[1][:2] == ("broken", "error")


def test_a_scorer_that_raises_leaves_no_score() -> None:
    def outcome(trace: vf.Trace) -> float:
        raise KeyError("gold")

    environment = vf.Environment()
    environment.rubric = vf.Rubric(outcome)
    assert_failed(run(environment), "rubric", "'outcome' raised KeyError: 'gold'")


def test_a_model_without_an_answer_fails_at_the_model() -> None:
    assert_failed(run(vf.Environment(), vf.ScriptedModel([])), "model", "no line for turn 0")


@pytest.mark.parametrize("error", [ValueError("bug"), TimeoutError("socket")])
def test_a_model_that_raises_anything_fails_at_the_model(error: Exception) -> None:
    model = vf.ScriptedModel([error])
    assert_failed(run(vf.Environment(), model), "model", f"{type(error).__name__}: {error}")


def test_a_failed_trace_can_be_stored(tmp_path: Any) -> None:
    trace = run(Scene(step=KeyError("x")))
    with vf.TraceStore(tmp_path / "t.jsonl") as store:
        store.append(trace)
    assert list(vf.TraceStore(tmp_path / "t.jsonl")) == [trace]
